// The kernel of hc_mean on the emulator: the oracle's values, rounded once, for rows of any width
// and streams of both dtypes, with a row's stride larger than its width.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/mhc/hc_mean.cuh"
#include "dsv4/ops/parts/mhc/mhc_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/emulator/launch.h"

namespace dsv4 {
namespace {

constexpr int kMore = 8;  // columns between rows of the output

template <int kWide, class T>
void check(int64_t t, int64_t m, int64_t d) {
  SCOPED_TRACE(fmt::format("t={} m={} d={} wide={}", t, m, d, kWide));
  constexpr DType kType = std::is_same_v<T, float> ? DType::kF32 : DType::kBF16;
  const Buffer streams(kType, {t, m, d}), out(kType, {t, d + kMore});
  Rng rng(static_cast<uint64_t>(t + m + d));
  test::fill_normal(streams, rng, 3.0);
  test::fill_normal(out, rng, 1.0);
  const std::vector<double> before = oracle::row(out, 0);
  const std::vector<double> want =
      hc_mean_oracle({.streams = streams, .out = out.view().slice(1, 0, d)});
  using namespace mhc_kernel::cuda;
  emulator::launch(
      {.grid = {static_cast<int>(t), static_cast<int>(ceil_div(d, int64_t{kMeanThreads} * kWide))},
       .block = kMeanThreads},
      [&] {
        hc_mean_kernel<kWide, T, T>(reinterpret_cast<const T*>(streams.view().data), m * d, d,
                                    static_cast<int>(m), static_cast<int>(d),
                                    reinterpret_cast<T*>(out.view().data), d + kMore);
      });
  for (int64_t row = 0; row < t; ++row) {
    const std::vector<double> got = oracle::row(out, row);
    for (int64_t c = 0; c < d; ++c) {
      const double value = want[static_cast<size_t>(row * d + c)];
      // A few roundings of the largest addend, and the store's.
      const double off = 2e-6 + std::abs(value) * (kType == DType::kBF16 ? 0x1p-8 : 0);
      ASSERT_NEAR(got[static_cast<size_t>(c)], value, off) << row << " " << c;
    }
  }
  const std::vector<double> after = oracle::row(out, 0);
  for (int64_t c = d; c < d + kMore; ++c)
    EXPECT_EQ(after[static_cast<size_t>(c)], before[static_cast<size_t>(c)]) << c;
}

TEST(HcMean, KernelAgreesWithOracle) {
  check<4, float>(3, 4, 1024);
  check<4, __nv_bfloat16>(2, 4, 520);
  check<1, float>(2, 3, 133);
  check<1, __nv_bfloat16>(5, 8, 1);
}

}  // namespace
}  // namespace dsv4
