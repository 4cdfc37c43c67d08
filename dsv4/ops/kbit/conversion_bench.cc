// What `dsv4 quantize` computes of a weight on a GPU: quantize_kbit/CODEBOOK CHOICE, quantize_fp4
// and row_errors, on a matrix of the size of an expert's, 2048 x 4096 in f32. The CPU's
// quantize_kbit is in quantize_kbit_bench.cc.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/kbit/quantize_kbit_case.h"
#include "dsv4/ops/kbit/row_errors_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kRows = 2048, kColumns = 4096;

void add(const Codebook& book, const char* name_of_book, ScaleChoice choice) {
  bench::register_case<QuantizeKbitArgs>(
      fmt::format("quantize_kbit/k{}-{} {}", book.bits, name_of_book, name(choice)), quantize_kbit,
      [=](bench::Arena& arena, bench::Random& random) {
        const TensorView x = arena.input(DType::kF32, {kRows, kColumns});
        bench::fill_normal(x, random, 0.02);
        return test::quantize_kbit_of(arena, x, book, choice);
      },
      Arch::kCuda);
}

void add_fp4(WeightFormat format, bool searched) {
  const bool mx = format == WeightFormat::kMxfp4;
  bench::register_case<QuantizeFp4Args>(
      fmt::format("quantize_fp4/{} {}", name(format), searched ? "searched" : "plain"),
      quantize_fp4, [=](bench::Arena& arena, bench::Random& random) {
        const TensorView x = arena.input(DType::kF32, {kRows, kColumns});
        bench::fill_normal(x, random, 0.02);
        return QuantizeFp4Args{.format = format,
                               .x = x,
                               .searched = searched,
                               .scale2 = mx ? 1.f : 0x1p-15f,
                               .pairs = arena.output(DType::kU8, {kRows, kColumns / 2}),
                               .scales = mx ? arena.output(DType::kE8M0, {kRows, kColumns / 32})
                                            : arena.output(DType::kE4M3, {kRows, kColumns / 16})};
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
  for (const bool importance : {false, true}) {
    bench::register_case<RowErrorsArgs>(
        fmt::format("row_errors{}", importance ? "/importance" : "/plain"), row_errors,
        [=](bench::Arena& arena, bench::Random& random) {
          return test::random_row_errors(arena, random, kRows, kColumns, importance);
        });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
