// What `dsv4 quantize` and a loader compute of a weight on a GPU: quantize_kbit/CODEBOOK CHOICE,
// quantize_fp4, row_errors, and repack_kbit and repack_image/FORMAT to LAYOUT, on a matrix of the
// size of an expert's, 2048 x 4096, floats in f32. Each call reads other memory than the one
// before, more than L2 holds together. The CPU's quantize_kbit and repack_kbit are in
// quantize_kbit_bench.cc and repack_kbit_bench.cc.

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/kbit/quantize_kbit_case.h"
#include "dsv4/ops/kbit/repack_image.h"
#include "dsv4/ops/kbit/repack_kbit.h"
#include "dsv4/ops/kbit/row_errors_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kRows = 2048, kColumns = 4096;
constexpr int kFloatTurns = 3;   // 33 MB each
constexpr int kCodedTurns = 48;  // 2 to 6 MB each

// Calls that take turns.
template <class Args>
struct Turns {
  bench::Arena arena;
  std::vector<Args> calls;
  Args args;
  size_t at = 0;

  void next() { args = calls[++at % calls.size()]; }
};

// build(Arena&, Random&) returns the arguments of one call.
template <class Args, class Build>
void add_turns(const std::string& name, const Op<Args>& op, int turns, const Build& build) {
  const auto make = [=] {
    auto made = std::make_shared<Turns<Args>>();
    bench::Random random(1);
    for (int i = 0; i < turns; ++i) made->calls.push_back(build(made->arena, random));
    made->next();
    return made;
  };
  bench::register_impls(name, op, make, Arch::kCuda);
}

TensorView normal(bench::Arena& arena, bench::Random& random) {
  const TensorView x = arena.input(DType::kF32, {kRows, kColumns});
  bench::fill_normal(x, random, 0.02);
  return x;
}

void add(const Codebook& book, const char* name_of_book, ScaleChoice choice) {
  add_turns(fmt::format("quantize_kbit/k{}-{} {}", book.bits, name_of_book, name(choice)),
            quantize_kbit, kFloatTurns, [=](bench::Arena& arena, bench::Random& random) {
              return test::quantize_kbit_of(arena, normal(arena, random), book, choice);
            });
}

void add_fp4(WeightFormat format, bool searched) {
  const bool mx = format == WeightFormat::kMxfp4;
  add_turns(fmt::format("quantize_fp4/{} {}", name(format), searched ? "searched" : "plain"),
            quantize_fp4, kFloatTurns, [=](bench::Arena& arena, bench::Random& random) {
              const int64_t groups = kColumns / (mx ? kMxfp4Group : kNvfp4Group);
              const DType scale = mx ? DType::kE8M0 : DType::kE4M3;
              return QuantizeFp4Args{.format = format,
                                     .x = normal(arena, random),
                                     .searched = searched,
                                     .scale2 = mx ? 1.f : 0x1p-15f,
                                     .pairs = arena.output(DType::kU8, {kRows, kColumns / 2}),
                                     .scales = arena.output(scale, {kRows, groups})};
            });
}

void add_row_errors(bool importance) {
  add_turns(fmt::format("row_errors{}", importance ? "/importance" : "/plain"), row_errors,
            kFloatTurns, [=](bench::Arena& arena, bench::Random& random) {
              return test::random_row_errors(arena, random, kRows, kColumns, importance);
            });
}

void add_tiles(int bits, Repack direction) {
  const bool to_tiles = direction == Repack::kToTiled;
  const auto pool = std::make_shared<bench::WeightPool>();
  add_turns(
      fmt::format("repack_kbit/k{} to {}", bits, to_tiles ? "tiles" : "rows"), repack_kbit,
      kCodedTurns, [=](bench::Arena& arena, bench::Random&) {
        const WeightView w = pool->next(WeightFormat::kKbit, kRows, kColumns, bits);
        const auto codes = [&](bool tiles, const auto& of) {
          return tiles ? of.reshape({kColumns / 64, kRows, int64_t{2} * bits}) : of;
        };
        const auto scales = [&](bool tiles, const auto& of) {
          return tiles ? of.reshape({kColumns / 64, kRows, 2}) : of;
        };
        return RepackKbitArgs{
            .direction = direction,
            .bits = bits,
            .planes_in = codes(!to_tiles, w.data),
            .scales_in = scales(!to_tiles, w.scale),
            .planes_out = codes(to_tiles, arena.output(DType::kI32, {kRows, w.data.dim(1)})),
            .scales_out = scales(to_tiles, arena.output(DType::kU8, {kRows, w.scale.dim(1)}))};
      });
}

void add_image(WeightFormat format, int bits, bool to_image) {
  const auto pool = std::make_shared<bench::WeightPool>();
  const std::string stored = bits == 0 ? name(format) : fmt::format("k{}", bits);
  add_turns(fmt::format("repack_image/{} to {}", stored, to_image ? "image" : "rows"), repack_image,
            kCodedTurns, [=](bench::Arena& arena, bench::Random&) {
              RepackImageArgs args{.to_image = to_image,
                                   .weight = pool->next(format, kRows, kColumns, bits)};
              const int64_t bytes = kbit_image(args.weight).bytes();
              if (to_image) {
                args.image_out = arena.output(DType::kU8, {bytes});
                return args;
              }
              args.image = arena.input(DType::kU8, {bytes});
              args.data = arena.output(args.weight.data.dtype, {kRows, args.weight.data.dim(1)});
              args.scale = arena.output(args.weight.scale.dtype, {kRows, args.weight.scale.dim(1)});
              args.weight.data = args.data, args.weight.scale = args.scale;
              return args;
            });
}

const bool kRegistered = [] {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    add(e4m3_codebook(bits), "e4m3", ScaleChoice::kReference);
    add(e4m3_codebook(bits), "e4m3", ScaleChoice::kSearched);
  }
  add(bnf_codebook(3), "bnf", ScaleChoice::kSearched);
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    for (const bool searched : {false, true}) add_fp4(format, searched);
  }
  for (const bool importance : {false, true}) add_row_errors(importance);
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const Repack direction : {Repack::kToTiled, Repack::kToFlat}) add_tiles(bits, direction);
    for (const bool to_image : {true, false}) add_image(WeightFormat::kKbit, bits, to_image);
  }
  for (const bool to_image : {true, false}) add_image(WeightFormat::kMxfp4, 0, to_image);
  return true;
}();

}  // namespace
}  // namespace dsv4
