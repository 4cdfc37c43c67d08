// The kernel of gemm/sm90/large_m on the emulator: its outputs have the bits of small_m, for every
// format, number of ranks and epilogue, whatever the order of events.

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/large_m/call.cuh"
#include "dsv4/ops/gemm/sm90/small_m/two_formats.cuh"
#include "dsv4/ops/gemm/x/stored_f16.cuh"
#include "dsv4/ops/model/attention_out/sm90_few/launch.cuh"
#include "tests/emulator/runs.h"
#include "tests/emulator/small_m_case.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace large = gemm::large_m;
namespace few = attention_out_kernel::sm90_few;
using gemm::Format;
using test::Arena;
using test::make_map;
using Scene = test::ProductScene;
using Bytes = std::vector<std::byte>;

Bytes bytes_of(const TensorView& view) {
  const auto row = static_cast<size_t>(view.dim(1) * item_bytes(view.dtype));
  Bytes bytes;
  for (int64_t i = 0; i < view.dim(0); ++i) {
    const std::byte* const from = view.slice(0, i, i + 1).data;
    bytes.insert(bytes.end(), from, from + row);
  }
  return bytes;
}

// The activations as the kernel takes them: bf16 of FP8 weights in f16.
void store_f16(Arena& arena, gemm::Product& p) {
  const int64_t t = p.in.x.dim(0), k = p.in.x.dim(1);
  const gemm::StoredF16 stored{arena.output(DType::kF16, {t, k}),
                               arena.output(DType::kE8M0, {t, k / gemm::kScaleColumns})};
  arena.prepare();
  const gemm::StoreF16Params params = gemm::make_store_f16_params(p.in.x, stored);
  emulator::launch({.grid = static_cast<int>(ceil_div(params.groups, gemm::kStoreF16Groups)),
                    .block = gemm::kStoreF16Threads},
                   [&] { gemm::store_f16_kernel(params); });
  // Inputs from now on.
  const auto copy = [&](const TensorView& from) {
    const TensorView to = arena.input(from.dtype, {from.dim(0), from.dim(1)});
    std::copy_n(from.data, from.bytes(), to.data);
    return to;
  };
  p.in = {.x = copy(stored.values), .x_scale = copy(stored.scales)};
}

template <class Epilogue>
emulator::Kernel large_kernel(const large::Params& params, Format format, int num_sms) {
  emulator::Kernel kernel{{.grid = large::num_ctas(params, num_sms),
                           .block = large::kThreads,
                           .cluster = large::kCtas,
                           .pdl = true,
                           .resident = 2},
                          {}};
  large::with_format(format, [&](auto config) {
    using C = decltype(config);
    kernel.launch.shared = sizeof(large::Shared<C>);
    kernel.body = [params] { large::large_m_kernel<C, Epilogue>(params); };
  });
  return kernel;
}

struct Case {
  Arena arena;
  gemm::Product product;
  Format format;
  int rank_bits;

  explicit Case(const Scene& s, bool by_columns) : format(s.format) {
    Rng rng(static_cast<uint64_t>(s.t * 1000 + s.n * 10 + s.k));
    product = test::random_product(arena, rng, s);
    if (s.f32_scale) {  // no powers of two, so that products with factors are rounded
      const auto& scale = product.weight.scale;
      auto* const values = const_cast<float*>(scale.as<float>());
      for (int64_t i = 0; i < scale.numel(); ++i) values[i] *= static_cast<float>(1 + rng.normal());
    }
    if (gemm::converts_to_f16(s.format)) store_f16(arena, product);
    const gemm::Shape shape =
        gemm::shape_of(product.weight, product.in, product.groups, by_columns);
    rank_bits = gemm::make_split(shape, s.num_sms).rank_bits;
  }
};

// ranks: that the case has, so that it is the case that its author had in mind
void check(const Scene& s, int ranks, bool by_columns = false, int runs = 4) {
  SCOPED_TRACE(fmt::format("format {} t {} n {} k {} groups {} sms {}", static_cast<int>(s.format),
                           s.t, s.n, s.k, s.groups, s.num_sms));
  Case c(s, by_columns);
  ASSERT_EQ(1 << c.rank_bits, ranks);
  const gemm::Product& p = c.product;
  c.arena.prepare();
  emulator::launch_stream({test::product_kernel(p, s.num_sms, by_columns)}, 1);
  const Bytes want = bytes_of(p.out);
  const emulator::Kernel kernel = large_kernel<large::StoreSums>(
      large::make_params(p, c.rank_bits, make_map), c.format, s.num_sms);
  std::vector<ConstTensorView> inputs{p.in.x};
  if (!p.in.x_scale.empty()) inputs.push_back(p.in.x_scale);
  emulator::check_runs(
      c.arena, runs,
      [&](int seed) {
        emulator::launch_stream({emulator::touching(inputs), kernel, kernel},
                                static_cast<uint64_t>(seed));
      },
      [&] { EXPECT_TRUE(bytes_of(p.out) == want) << "other bits than small_m"; });
}

// Rows and tokens that end inside a tile, of one CTA and of both; one slab to more than a ring has.
TEST(LargeMEmulated, Fp8) {
  check({.t = 1, .n = 64, .k = 128}, 1);
  check({.t = 130, .n = 300, .k = 640, .num_sms = 4}, 4);
  check({.t = 200, .n = 129, .k = 1408, .f32_out = true}, 8);
  check({.t = 129, .n = 72, .k = 384, .f32_scale = true, .f32_out = true}, 2);
}
TEST(LargeMEmulated, Bf16) {
  check({.t = 65, .n = 140, .k = 64, .format = Format::kBf16}, 1);
  check({.t = 130, .n = 257, .k = 600, .format = Format::kBf16, .f32_out = true}, 8);
}
TEST(LargeMEmulated, F16) {
  check({.t = 140, .n = 130, .k = 640, .format = Format::kFp8Bf16}, 4);
  check({.t = 66, .n = 256, .k = 256, .format = Format::kFp8Bf16, .groups = 2}, 2);
}
TEST(LargeMEmulated, Groups) {
  check({.t = 100, .n = 384, .k = 256, .groups = 2}, 2);
  check({.t = 100, .n = 70, .k = 256, .format = Format::kBf16, .groups = 3}, 4);
}
// Several tiles of a cluster, along tokens first and along rows first.
TEST(LargeMEmulated, ManyTilesOfACluster) {
  check({.t = 129, .n = 1100, .k = 384}, 2, false, 2);
  check({.t = 600, .n = 200, .k = 256}, 2, false, 2);
}
TEST(LargeMEmulated, RanksByColumns) {
  check({.t = 70, .n = 130, .k = 1024, .num_sms = 4}, 1, true, 2);
  check({.t = 70, .n = 130, .k = 1152, .num_sms = 4}, 4, true, 2);
  check({.t = 70, .n = 130, .k = 4224, .num_sms = 4, .f32_out = true}, 8, true, 1);
}

// Several weights of one x: FP8 in a launch, BF16 in another.
TEST(LargeMEmulated, Targets) {
  constexpr int64_t kTokens = 140, kColumns = 640;
  constexpr int kSms = 4;
  Arena arena;
  Rng rng(3);
  const TensorView x = arena.input(DType::kBF16, {kTokens, kColumns});
  const LinearArgs codes =
      test::random_linear(arena, rng, {.t = kTokens, .x = DType::kE4M3},
                          test::random_weight(arena, rng, {WeightFormat::kFp8Block}, 1, kColumns));
  test::fill_normal(x, rng);
  std::vector<gemm::Target> targets;
  const auto add = [&](WeightFormat format, int64_t n, DType out) {
    targets.push_back(
        {test::random_weight(arena, rng, {format}, n, kColumns), arena.output(out, {kTokens, n})});
  };
  add(WeightFormat::kFp8Block, 400, DType::kBF16);
  add(WeightFormat::kBF16, 300, DType::kF32);
  add(WeightFormat::kFp8Block, 130, DType::kBF16);
  add(WeightFormat::kBF16, 64, DType::kBF16);
  add(WeightFormat::kBF16, 256, DType::kF32);
  const gemm::Activations quantized{.x = codes.x, .x_scale = codes.x_scale};
  const gemm::TwoFormats formats(targets, kTokens, kColumns, kSms);
  EXPECT_GT(formats.split.q8.rank_bits, 0);
  arena.freeze();
  const auto bits_of = [&](const std::vector<emulator::Kernel>& kernels, int seed) {
    arena.prepare();
    emulator::launch_stream(kernels, static_cast<uint64_t>(seed));
    arena.verify();
    return arena.written();
  };
  const gemm::TwoFormatParams params =
      gemm::make_two_format_params(formats, targets, x, quantized, make_map);
  emulator::Kernel small{{.grid = {static_cast<int>(formats.ctas()),
                                   static_cast<int>(ceil_div(kTokens, int64_t{formats.tokens}))},
                          .block = gemm::kThreads,
                          .cluster = formats.split.q8.ranks(),
                          .shared = static_cast<size_t>(formats.shared())},
                         {}};
  gemm::with_q8_config(formats.q8.format, formats.tokens, [&](auto config) {
    small.body = [&params] { gemm::store_two_formats_kernel<decltype(config)>()(params); };
  });
  const Bytes want = bits_of({small}, 1);
  const auto kernel_of = [&](Format format, const gemm::Activations& in, const gemm::Split& split) {
    return large_kernel<large::StoreSums>(
        large::make_target_params(targets, format, in, kColumns, split.rank_bits, make_map), format,
        kSms);
  };
  const emulator::Kernel fp8 = kernel_of(Format::kFp8, quantized, formats.split.q8),
                         bf16 = kernel_of(Format::kBf16, {.x = x}, formats.split.bf16);
  for (int seed = 0; seed < 3; ++seed)
    EXPECT_TRUE(bits_of({emulator::touching({x, codes.x}), fp8, bf16}, seed) == want) << seed;
}

// wo_a: Q8 of the sums, as the epilogue of attention_out/sm90_few stores them.
void check_q8(int64_t t, int num_sms, int64_t k) {
  SCOPED_TRACE(t);
  Case c({.t = t, .n = 256, .k = k, .format = Format::kFp8Bf16, .groups = 2, .num_sms = num_sms},
         false);
  const gemm::Product& p = c.product;
  const TensorView codes = c.arena.output(DType::kE4M3, {t, 512}),
                   scales = c.arena.output(DType::kE8M0, {t, 4});
  const gemm::Shape shape = few::shape_of_wo_a(p);
  const gemm::Split split = gemm::make_split(shape, num_sms);
  ASSERT_EQ(split.rank_bits, c.rank_bits);
  const int tokens = gemm::tile_tokens(shape);
  c.arena.prepare();
  gemm::with_tokens<Format::kFp8Bf16>(tokens, [&](auto config) {
    const few::Params params = few::make_params(p, split, tokens, codes, scales, make_map);
    emulator::launch_stream(
        {{test::launch_of(shape, split, tokens),
          [&] { gemm::small_m_kernel<decltype(config), few::Params, few::StoreQ8>(params); }}},
        1);
  });
  const std::pair<Bytes, Bytes> want{bytes_of(codes), bytes_of(scales)};
  const emulator::Kernel kernel = large_kernel<large::StoreQ8>(
      large::make_q8_params(p, c.rank_bits, codes, scales, make_map), c.format, num_sms);
  emulator::check_runs(
      c.arena, 3,
      [&](int seed) {
        emulator::launch_stream({emulator::touching({p.in.x, p.in.x_scale}), kernel, kernel},
                                static_cast<uint64_t>(seed));
      },
      [&] {
        EXPECT_TRUE(bytes_of(codes) == want.first);
        EXPECT_TRUE(bytes_of(scales) == want.second);
      });
}
TEST(LargeMEmulated, Q8OfSums) {
  check_q8(130, 2, 512);
  check_q8(75, 4, 256);
}

}  // namespace
}  // namespace dsv4
