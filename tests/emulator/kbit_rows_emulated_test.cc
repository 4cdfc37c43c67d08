// The kernel of gemm/sm90/kbit_rows on the emulator, against the oracle of linear.h: every K in
// bf16 and f16, tiles of 8, 16 and 32 rows, clusters of 1 and 2 CTAs, several rounds, ragged rows
// and columns. Bits depend neither on the order of events nor on the other rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/kbit_rows/call.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/kernel.cuh"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

namespace kernel = gemm::kbit_rows;
using test::Arena;

struct Scene {
  int bits;
  int64_t t, n, k;
  DType dtype = DType::kBF16, out = DType::kBF16;
  int ranks = 0;  // of the plan; 0: any
  int num_sms = 2;
  bool e4m3 = false;
};

// A plan with that many ranks, on a GPU of few SMs.
kernel::Plan plan_of(const Scene& s) {
  kernel::Plan plan =
      kernel::make_plan({.bits = s.bits, .n = s.n, .k = s.k, .tokens = s.t}, s.num_sms);
  if (s.ranks == 0) return plan;
  plan.ranks = s.ranks;
  plan.row_groups = std::min(s.ranks, kernel::kWarpgroups);
  const auto groups = static_cast<int>(ceil_div(s.n, int64_t{plan.rows} * plan.row_groups));
  plan.clusters = (groups + 1) / 2;  // two rounds where there is more than one
  plan.rounds = static_cast<int>(ceil_div(groups, plan.clusters));
  kernel::divide_rows(s.n, plan);
  plan.stages = 2;
  return plan;
}

// After a kernel that writes x, and before one that reads and writes all that it reads and writes.
template <int K, class X, int kCells>
void run_kernel(const kernel::Product& p, const kernel::Plan& plan, uint64_t seed) {
  const kernel::Params params = kernel::make_params(p, plan, emulator::make_tma_map);
  const int shared = kernel::Layout(K, plan).bytes;
  const emulator::Launch how{.grid = {plan.clusters * plan.ranks,
                                      static_cast<int>(ceil_div(p.x.dim(0), int64_t{plan.cells}))},
                             .block = kernel::kThreads,
                             .cluster = plan.ranks,
                             .shared = static_cast<size_t>(shared),
                             .pdl = true};
  emulator::launch_stream({emulator::touching({p.x}),
                           {how, [&] { kernel::kbit_rows_kernel<K, X, kCells>(params); }},
                           emulator::touching({p.x, p.out})},
                          seed);
}

template <int K, class X>
void run_tile(const kernel::Product& p, const kernel::Plan& plan, uint64_t seed) {
  if (plan.cells == 1) return run_kernel<K, X, 1>(p, plan, seed);
  if (plan.cells == 2) return run_kernel<K, X, 2>(p, plan, seed);
  if (plan.cells == 4) return run_kernel<K, X, 4>(p, plan, seed);
  if (plan.cells == 8) return run_kernel<K, X, 8>(p, plan, seed);
  if (plan.cells == 16) return run_kernel<K, X, 16>(p, plan, seed);
  run_kernel<K, X, 32>(p, plan, seed);
}

template <int K>
void run(const kernel::Product& p, const kernel::Plan& plan, uint64_t seed) {
  p.x.dtype == DType::kF16 ? run_tile<K, f16>(p, plan, seed) : run_tile<K, bf16>(p, plan, seed);
}

void run(const kernel::Product& p, const kernel::Plan& plan, uint64_t seed) {
  constexpr decltype(&run<2>) kRun[] = {run<2>, run<3>, run<4>, run<5>};
  kRun[p.weight.bits - kMinKbit](p, plan, seed);
}

LinearArgs random_args(Arena& arena, Rng& rng, const Scene& s) {
  return test::random_linear(
      arena, rng, {.t = s.t, .x = s.dtype, .out = s.out},
      test::random_weight(arena, rng, {WeightFormat::kKbit, s.bits, s.e4m3}, s.n, s.k));
}

void check(const Scene& s, int runs = 1) {
  SCOPED_TRACE(
      fmt::format("k{} t={} n={} k={} {} ranks={}", s.bits, s.t, s.n, s.k, name(s.dtype), s.ranks));
  Arena arena;
  Rng rng(static_cast<uint64_t>(s.bits * 1000 + s.t * 100 + s.k));
  const LinearArgs args = random_args(arena, rng, s);
  const kernel::Plan plan = plan_of(s);
  ASSERT_GT(plan.cells, 0);
  const double magnitude = linear_magnitude(args);
  test::Tolerance tolerance = test::linear_tolerance(args, magnitude);
  tolerance.abs += kernel::rounding(s.dtype) * magnitude;
  const std::vector<double> want = linear_oracle(args);
  emulator::check_runs(
      arena, runs,
      [&](int seed) {
        run({.x = args.x, .weight = args.weight, .out = args.out}, plan,
            static_cast<uint64_t>(seed));
      },
      [&] { EXPECT_EQ(test::compare(args.out, want, tolerance), ""); });
}

// With one column of x set at a time every weight is seen alone, in its place, at its precision.
TEST(KbitRowsEmulated, EveryWeightInItsPlace) {
  constexpr int64_t kColumns = 256, kRows = 40;
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(bits));
      const WeightView weight =
          test::random_weight(arena, rng, {WeightFormat::kKbit, bits}, kRows, kColumns);
      for (const int64_t tile : {8, 16, 32}) {
        for (int64_t first = 0; first < kColumns; first += tile) {
          const TensorView x = arena.input(dtype, {tile, kColumns});
          for (int64_t i = 0; i < x.numel(); ++i)
            test::set_value(x, i, i % kColumns == first + i / kColumns ? 1 : 0);
          const TensorView out = arena.output(DType::kF32, {tile, kRows});
          run({.x = x, .weight = weight, .out = out},
              plan_of({.bits = bits, .t = tile, .n = kRows, .k = kColumns}), 1);
          for (int64_t i = 0; i < tile * kRows; ++i) {
            const double want = weight_value(weight, i % kRows, first + i / kRows);
            ASSERT_NEAR(out.as<float>()[i], want,
                        (dtype == DType::kF16 ? 0x1p-10 : 0x1p-7) * std::abs(want) + 0x1p-24)
                << "k" << bits << " row " << i % kRows << " column " << first + i / kRows;
          }
        }
      }
    }
  }
}

TEST(KbitRowsEmulated, AgreesWithOracle) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t k : {128, 256, 384, 640, 2048})
        check({.bits = bits, .t = 3, .n = 70, .k = k, .dtype = dtype, .out = dtype});
      for (const int64_t t : {1, 8, 9, 16, 20, 32, 45})
        check({.bits = bits, .t = t, .n = 37, .k = 640, .dtype = dtype, .out = DType::kF32});
    }
  }
  check({.bits = 3, .t = 2, .n = 90, .k = 512, .e4m3 = true});
  // Warps of a warpgroup share its rows.
  for (const int64_t n : {13, 30, 50}) {
    for (const int64_t t : {1, 8}) check({.bits = 4, .t = t, .n = n, .k = 2432, .num_sms = 1});
  }
}

TEST(KbitRowsEmulated, ClustersAndRounds) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int ranks : {1, 2})
      check({.bits = bits, .t = 8 * ranks + 2, .n = 600, .k = 1280, .ranks = ranks}, 2);
  }
}

TEST(KbitRowsEmulated, AnyOrderOfEvents) {
  check({.bits = 2, .t = 1, .n = 150, .k = 4096, .ranks = 1}, 8);
  check({.bits = 5, .t = 17, .n = 300, .k = 2176, .ranks = 2}, 8);
}

// A row's bits are the same beside rows with other values, NaN included.
TEST(KbitRowsEmulated, RowsDoNotSeeEachOther) {
  Arena arena;
  Rng rng(5);
  const Scene scene{.bits = 4, .t = 6, .n = 70, .k = 384};
  const LinearArgs args = random_args(arena, rng, scene);
  const TensorView other = arena.input(DType::kBF16, {scene.t, scene.k});
  for (int64_t i = 0; i < other.numel(); ++i) test::set_value(other, i, NAN);
  std::memcpy(other.data + 2 * scene.k * 2, args.x.data + 2 * scene.k * 2,
              static_cast<size_t>(scene.k) * 2);
  const TensorView out = arena.output(DType::kBF16, {scene.t, scene.n});
  const kernel::Plan plan = plan_of(scene);
  run({.x = args.x, .weight = args.weight, .out = args.out}, plan, 1);
  run({.x = other, .weight = args.weight, .out = out}, plan, 2);
  EXPECT_TRUE(std::ranges::equal(std::span(args.out.row<uint16_t>(2), scene.n),
                                 std::span(out.row<uint16_t>(2), scene.n)));
}

}  // namespace
}  // namespace dsv4
