// The kernel of gemm/sm90/kbit_wide on the emulator, against the oracle of linear.h: every K in
// bf16 and f16, every tile, clusters of every size, ragged rows of both operands. Bits depend
// neither on the order of events, nor on the tile, nor on the other rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/kbit_wide/call.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/kernel.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/order_x.cuh"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

namespace kernel = gemm::kbit_wide;
using test::Arena;

struct Scene {
  int bits;
  int64_t t, n, k;
  DType dtype = DType::kBF16, out = DType::kBF16;
  kernel::Tile tile{};
  int rank_bits = 1;
};

CUtensorMap make_map(const TmaBox& box) {
  return emulator::make_tma_map(box);
}

kernel::Plan plan_of(const kernel::Product& p, const kernel::Tile& tile, int rank_bits) {
  return {.rank_bits = rank_bits,
          .units = static_cast<int>(p.weight.k / kernel::kUnit),
          .tile = tile,
          .row_tiles = static_cast<int>(ceil_div(p.weight.n, int64_t{tile.rows()})),
          .x_tiles = static_cast<int>(ceil_div(p.x.dim(0), int64_t{tile.columns}))};
}

// After a kernel that writes x and the workspace, and before one that reads and writes all that it
// reads and writes.
template <int K, class X>
void run_kernel(const kernel::Product& p, const kernel::Plan& plan, uint64_t seed) {
  const int64_t tokens = p.x.dim(0);
  Arena workspace;
  const TensorView ordered_x =
      workspace.output(p.x.dtype, {plan.units, tokens, int64_t{kernel::kUnit}});
  workspace.freeze();
  workspace.prepare();
  const emulator::Launch first{
      .grid = {plan.units, static_cast<int>(ceil_div(tokens, int64_t{kernel::kOrderTokens}))},
      .block = kernel::kOrderThreads};
  const auto order_x = [&] {
    kernel::order_x_kernel(p.x.as<uint16_t>(), p.x.row_stride(), static_cast<int>(tokens),
                           ordered_x.as<uint16_t>());
  };
  kernel::with_tile(plan.tile, [&]<int kGroups, int kColumns>() {
    using C = kernel::Config<K, X, kGroups, kColumns>;
    const kernel::Params params = kernel::make_params(p, plan, ordered_x, make_map);
    const emulator::Launch how{.grid = {plan.row_tiles << plan.rank_bits, plan.x_tiles},
                               .block = C::kThreads,
                               .cluster = plan.ranks(),
                               .shared = sizeof(kernel::Shared<C>),
                               .pdl = true};
    emulator::launch_stream({emulator::touching({p.x, ordered_x}),
                             {first, order_x},
                             {how, [&] { kernel::kbit_wide_kernel<C>(params); }},
                             emulator::touching({p.x, ordered_x, p.out})},
                            seed);
  });
}

template <int K>
void run(const kernel::Product& p, const kernel::Plan& plan, uint64_t seed) {
  p.x.dtype == DType::kF16 ? run_kernel<K, f16>(p, plan, seed) : run_kernel<K, bf16>(p, plan, seed);
}

void run(const kernel::Product& p, const kernel::Tile& tile, int rank_bits, uint64_t seed) {
  constexpr decltype(&run<2>) kRun[] = {run<2>, run<3>, run<4>, run<5>};
  kRun[p.weight.bits - kMinKbit](p, plan_of(p, tile, rank_bits), seed);
}

LinearArgs random_args(Arena& arena, Rng& rng, const Scene& s) {
  return test::random_linear(
      arena, rng, {.t = s.t, .x = s.dtype, .out = s.out},
      test::random_weight(arena, rng, {WeightFormat::kKbit, s.bits}, s.n, s.k));
}

void check(const Scene& s, int runs = 1) {
  SCOPED_TRACE(fmt::format("k{} t={} n={} k={} {} groups={} columns={} ranks={}", s.bits, s.t, s.n,
                           s.k, name(s.dtype), s.tile.groups, s.tile.columns, 1 << s.rank_bits));
  Arena arena;
  Rng rng(static_cast<uint64_t>(s.bits * 1000 + s.t * 100 + s.k));
  const LinearArgs args = random_args(arena, rng, s);
  const double magnitude = linear_magnitude(args);
  test::Tolerance tolerance = test::linear_tolerance(args, magnitude);
  tolerance.abs += kernel::rounding(s.dtype) * magnitude;
  const std::vector<double> want = linear_oracle(args);
  emulator::check_runs(
      arena, runs,
      [&](int seed) {
        run({.x = args.x, .weight = args.weight, .out = args.out}, s.tile, s.rank_bits,
            static_cast<uint64_t>(seed));
      },
      [&] { EXPECT_EQ(test::compare(args.out, want, tolerance), ""); });
}

// With one column of x set at a time every weight is seen alone, in its place, at its precision.
TEST(KbitWideEmulated, EveryWeightInItsPlace) {
  constexpr int64_t kColumns = 512, kRows = 130, kTokens = 128;
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    const DType dtype = bits % 2 == 0 ? DType::kF16 : DType::kBF16;
    Arena arena;
    Rng rng(static_cast<uint64_t>(bits));
    const WeightView weight =
        test::random_weight(arena, rng, {WeightFormat::kKbit, bits}, kRows, kColumns);
    for (int64_t first = 0; first < kColumns; first += kTokens) {
      const TensorView x = arena.input(dtype, {kTokens, kColumns});
      for (int64_t i = 0; i < x.numel(); ++i)
        test::set_value(x, i, i % kColumns == first + i / kColumns ? 1 : 0);
      const TensorView out = arena.output(DType::kF32, {kTokens, kRows});
      run({.x = x, .weight = weight, .out = out}, {4, 128}, 1, 1);
      for (int64_t i = 0; i < kTokens * kRows; ++i) {
        const double want = weight_value(weight, i % kRows, first + i / kRows);
        ASSERT_NEAR(out.as<float>()[i], want,
                    (dtype == DType::kF16 ? 0x1p-10 : 0x1p-7) * std::abs(want) + 0x1p-24)
            << "k" << bits << " row " << i % kRows << " column " << first + i / kRows;
      }
    }
  }
}

// Every tile with every K: rings of other lengths.
TEST(KbitWideEmulated, AgreesWithOracle) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const kernel::Tile& tile : kernel::kTiles) {
      const DType dtype = (bits + tile.columns / 32) % 2 == 0 ? DType::kBF16 : DType::kF16;
      check(
          {.bits = bits, .t = 41, .n = 150, .k = 2560, .dtype = dtype, .out = dtype, .tile = tile});
    }
  }
}

TEST(KbitWideEmulated, RaggedRows) {
  for (const kernel::Tile& tile : kernel::kTiles) {
    check({.bits = 3, .t = tile.columns, .n = 64, .k = 512, .out = DType::kF32, .tile = tile});
    check({.bits = 4, .t = tile.columns + 9, .n = 261, .k = 1024, .tile = tile});
    check({.bits = 2, .t = 1, .n = 33, .k = 1024, .dtype = DType::kF16, .tile = tile});
  }
}

// Shares that begin in the middle of a group of scales, and ranks with unequal shares.
TEST(KbitWideEmulated, ClustersOfEverySize) {
  for (int rank_bits = 0; rank_bits <= kernel::kMostRankBits; ++rank_bits) {
    for (const kernel::Tile& tile :
         {kernel::Tile{2, 64}, kernel::Tile{2, 96}, kernel::Tile{2, 128}, kernel::Tile{4, 128}})
      check({.bits = 2 + rank_bits,
             .t = 50,
             .n = 140,
             .k = 1536,
             .out = DType::kF32,
             .tile = tile,
             .rank_bits = rank_bits});
  }
}

TEST(KbitWideEmulated, AnyOrderOfEvents) {
  check({.bits = 2, .t = 70, .n = 90, .k = 6144, .tile = {2, 64}}, 8);
  check({.bits = 5, .t = 40, .n = 200, .k = 5120, .tile = {4, 128}}, 8);
  check({.bits = 4, .t = 120, .n = 70, .k = 4608, .tile = {2, 128}}, 8);
  check({.bits = 3, .t = 65, .n = 100, .k = 3072, .tile = {2, 96}, .rank_bits = 2}, 8);
}

// A row's bits are the same alone and beside rows with other values, NaN included, in any tile.
TEST(KbitWideEmulated, RowsDoNotSeeEachOther) {
  Arena arena;
  Rng rng(5);
  const Scene scene{.bits = 4, .t = 70, .n = 70, .k = 1536};
  const LinearArgs args = random_args(arena, rng, scene);
  run({.x = args.x, .weight = args.weight, .out = args.out}, scene.tile, scene.rank_bits, 1);
  constexpr int64_t kRow = 2;
  for (const kernel::Tile& tile : kernel::kTiles) {
    const int64_t rows = tile.columns - 11;
    const TensorView other = arena.input(DType::kBF16, {rows, scene.k});
    for (int64_t i = 0; i < other.numel(); ++i) test::set_value(other, i, NAN);
    std::memcpy(other.row<uint16_t>(kRow), args.x.row<uint16_t>(kRow),
                static_cast<size_t>(scene.k) * 2);
    const TensorView out = arena.output(DType::kBF16, {rows, scene.n});
    run({.x = other, .weight = args.weight, .out = out}, tile, scene.rank_bits, 2);
    EXPECT_TRUE(std::ranges::equal(std::span(args.out.row<uint16_t>(kRow), scene.n),
                                   std::span(out.row<uint16_t>(kRow), scene.n)))
        << tile.groups << " groups, " << tile.columns << " columns";
  }
}

}  // namespace
}  // namespace dsv4
