// The kernel of gemm/cuda/kbit_stream on the emulator, against the oracle of linear.h: every K in
// bf16 and f16, tiles of 8 and 16 rows, several rounds, ragged rows and columns. Bits depend
// neither on the order of events nor on the other rows.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/cuda/kbit_stream/call.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/kernel.cuh"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

namespace kernel = gemm::kbit_stream;
using test::Arena;

struct Scene {
  int bits;
  int64_t t, n, k;
  DType dtype = DType::kBF16, out = DType::kBF16;
  int num_sms = 2;
  bool e4m3 = false;
};

// After a kernel that writes x, and before one that reads and writes all that it reads and writes.
template <int K, class X>
void run_kernel(const kernel::Product& p, int num_sms, uint64_t seed) {
  const kernel::Params params = kernel::make_params(p, num_sms);
  kernel::with_config(params, [&]<int kTokens, bool kWhole>() {
    const emulator::Launch how{
        .grid = {params.plan.ctas, static_cast<int>(ceil_div(p.x.dim(0), int64_t{kTokens}))},
        .block = kernel::kThreads,
        .shared = static_cast<size_t>(kernel::Memory<K, kTokens>::kAt.bytes),
        .pdl = true};
    emulator::launch_stream(
        {emulator::touching({p.x}),
         {how, [&] { kernel::kbit_stream_kernel<K, X, kTokens, kWhole>(params); }},
         emulator::touching({p.x, p.out})},
        seed);
  });
}

template <int K>
void run(const kernel::Product& p, int num_sms, uint64_t seed) {
  p.x.dtype == DType::kF16 ? run_kernel<K, f16>(p, num_sms, seed)
                           : run_kernel<K, bf16>(p, num_sms, seed);
}

void run(const kernel::Product& p, int num_sms, uint64_t seed) {
  constexpr decltype(&run<2>) kRun[] = {run<2>, run<3>, run<4>, run<5>};
  kRun[p.weight.bits - kMinKbit](p, num_sms, seed);
}

LinearArgs random_args(Arena& arena, Rng& rng, const Scene& s) {
  return test::random_linear(
      arena, rng, {.t = s.t, .x = s.dtype, .out = s.out},
      test::random_weight(arena, rng, {WeightFormat::kKbit, s.bits, s.e4m3}, s.n, s.k));
}

void check(const Scene& s, int runs = 1) {
  SCOPED_TRACE(fmt::format("k{} t={} n={} k={} {}", s.bits, s.t, s.n, s.k, name(s.dtype)));
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
        run({.x = args.x, .weight = args.weight, .out = args.out}, s.num_sms,
            static_cast<uint64_t>(seed));
      },
      [&] { EXPECT_EQ(test::compare(args.out, want, tolerance), ""); });
}

// With one column of x set at a time every weight is seen alone, in its place, at its precision.
TEST(KbitStreamEmulated, EveryWeightInItsPlace) {
  constexpr int64_t kColumns = 160, kRows = 40;
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(bits));
      const WeightView weight =
          test::random_weight(arena, rng, {WeightFormat::kKbit, bits}, kRows, kColumns);
      for (const int64_t tile : {8, 16}) {
        for (int64_t first = 0; first < kColumns; first += tile) {
          const TensorView x = arena.input(dtype, {tile, kColumns});
          for (int64_t i = 0; i < x.numel(); ++i)
            test::set_value(x, i, i % kColumns == first + i / kColumns ? 1 : 0);
          const TensorView out = arena.output(DType::kF32, {tile, kRows});
          run({.x = x, .weight = weight, .out = out}, 2, 1);
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

TEST(KbitStreamEmulated, AgreesWithOracle) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t k : {32, 64, 96, 416, 2048})
        check({.bits = bits, .t = 3, .n = 70, .k = k, .dtype = dtype, .out = dtype});
      for (const int64_t t : {1, 8, 9, 16, 20, 32, 45})
        check({.bits = bits, .t = t, .n = 37, .k = 640, .dtype = dtype, .out = DType::kF32});
    }
  }
  check({.bits = 3, .t = 2, .n = 90, .k = 512, .e4m3 = true});
}

// CTAs with unequal numbers of tiles, rounds of which the last is short, warps without columns.
TEST(KbitStreamEmulated, RowsOverCtasAndRounds) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    check({.bits = bits, .t = 2, .n = 600, .k = 1184, .num_sms = 1}, 2);
    check({.bits = bits, .t = 12, .n = 600, .k = 256, .num_sms = 3}, 2);
    check({.bits = bits, .t = 1, .n = 1100, .k = 96, .num_sms = 1}, 2);
    check({.bits = bits, .t = 5, .n = 528, .k = 2048, .num_sms = 1}, 2);
    check({.bits = bits, .t = 9, .n = 528, .k = 2048, .num_sms = 1}, 2);
  }
}

TEST(KbitStreamEmulated, AnyOrderOfEvents) {
  check({.bits = 2, .t = 1, .n = 150, .k = 4096}, 8);
  check({.bits = 5, .t = 17, .n = 300, .k = 2080}, 8);
}

// A row's bits are the same alone, beside rows with other values, NaN included, and in other tiles.
TEST(KbitStreamEmulated, RowsDoNotSeeEachOther) {
  Arena arena;
  Rng rng(5);
  const Scene scene{.bits = 4, .t = 12, .n = 70, .k = 416};
  const LinearArgs args = random_args(arena, rng, scene);
  run({.x = args.x, .weight = args.weight, .out = args.out}, scene.num_sms, 1);
  constexpr int64_t kRow = 2;
  for (const int64_t rows : {int64_t{3}, scene.t}) {
    const TensorView other = arena.input(DType::kBF16, {rows, scene.k});
    for (int64_t i = 0; i < other.numel(); ++i) test::set_value(other, i, NAN);
    std::memcpy(other.row<uint16_t>(kRow), args.x.row<uint16_t>(kRow),
                static_cast<size_t>(scene.k) * 2);
    const TensorView out = arena.output(DType::kBF16, {rows, scene.n});
    run({.x = other, .weight = args.weight, .out = out}, scene.num_sms, 2);
    EXPECT_TRUE(std::ranges::equal(std::span(args.out.row<uint16_t>(kRow), scene.n),
                                   std::span(out.row<uint16_t>(kRow), scene.n)));
  }
}

}  // namespace
}  // namespace dsv4
