#include "tests/harness/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsv4/tensor/buffer.h"
#include "tests/harness/arena.h"

namespace dsv4::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// compare() of a tensor that holds `got`.
std::string report(DType dtype, const std::vector<double>& got, const std::vector<double>& want,
                   const Tolerance& tolerance) {
  const Buffer buffer(dtype, {static_cast<int64_t>(got.size())});
  for (size_t i = 0; i < got.size(); ++i) set_value(buffer, static_cast<int64_t>(i), got[i]);
  return compare(buffer, want, tolerance);
}

TEST(Ulp, IsTheStepOfTheType) {
  EXPECT_EQ(ulp(DType::kF32, 1), 0x1p-23);
  EXPECT_EQ(ulp(DType::kF32, -1.99), 0x1p-23);
  EXPECT_EQ(ulp(DType::kF32, 2), 0x1p-22);
  EXPECT_EQ(ulp(DType::kBF16, 1), 0x1p-7);
  EXPECT_EQ(ulp(DType::kF16, 1), 0x1p-10);
  EXPECT_EQ(ulp(DType::kE4M3, 448), 32);
  EXPECT_EQ(ulp(DType::kF64, 1), 0x1p-52);
  EXPECT_EQ(ulp(DType::kF32, 0), 0x1p-149);
  EXPECT_EQ(ulp(DType::kF32, 1e-45), 0x1p-149);
  EXPECT_EQ(ulp(DType::kE4M3, 0.001), 0x1p-9);
  EXPECT_EQ(ulp(DType::kI32, 7), 0);
  EXPECT_EQ(ulp(DType::kF32, kInf), 0);
}

TEST(Compare, UlpsAreOfTheWantedValue) {
  EXPECT_EQ(report(DType::kF32, {1 + 0x1p-23}, {1}, {.ulps = 1}), "");
  EXPECT_NE(report(DType::kF32, {1 + 0x1p-22}, {1}, {.ulps = 1}), "");
  EXPECT_EQ(report(DType::kF32, {1}, {1 + 0x1p-24}, {.ulps = 0.5}), "");
  EXPECT_NE(report(DType::kF32, {1}, {1 + 0x1p-24}, {.ulps = 0.49}), "");
}

TEST(Compare, AbsAndRelAddRoom) {
  EXPECT_EQ(report(DType::kF32, {0.25, 100}, {0, 100}, {.ulps = 0, .abs = 0.25}), "");
  EXPECT_NE(report(DType::kF32, {0.26, 100}, {0, 100}, {.ulps = 0, .abs = 0.25}), "");
  EXPECT_EQ(report(DType::kF32, {0.5, 100}, {0, 100}, {.ulps = 0, .rel = 0.005}), "");
  EXPECT_NE(report(DType::kF32, {0.51, 100}, {0, 100}, {.ulps = 0, .rel = 0.005}), "");
}

TEST(Compare, NanAndInfinityMustAgree) {
  const Tolerance wide{.ulps = 1e9, .abs = 1e9};
  EXPECT_EQ(report(DType::kF32, {kNan, kInf, -kInf}, {kNan, kInf, -kInf}, wide), "");
  EXPECT_NE(report(DType::kF32, {kNan}, {0}, wide), "");
  EXPECT_NE(report(DType::kF32, {0}, {kNan}, wide), "");
  EXPECT_NE(report(DType::kF32, {kInf}, {-kInf}, wide), "");
  EXPECT_NE(report(DType::kF32, {kInf}, {1}, wide), "");
  EXPECT_NE(report(DType::kF32, {1}, {kInf}, wide), "");
}

TEST(Compare, CosineSeesWhatWideTolerancesLetPass) {
  std::vector<double> want(16), half(16);
  for (size_t i = 0; i < 16; ++i) want[i] = static_cast<double>(i), half[i] = i < 8 ? 0 : want[i];
  const std::string text = report(DType::kF32, half, want, {.abs = 100, .cosine = 1e-2});
  EXPECT_NE(text.find("1 - cosine"), std::string::npos) << text;
  EXPECT_EQ(report(DType::kF32, want, want, {.ulps = 0, .cosine = 1e-15}), "");
}

TEST(Compare, IntegersAreExact) {
  EXPECT_EQ(report(DType::kI32, {3, -4}, {3, -4}, {.ulps = 100}), "");
  EXPECT_NE(report(DType::kI32, {3, -4}, {3, -5}, {.ulps = 100}), "");
}

TEST(Compare, ReportsCountsAndTheWorstFirst) {
  EXPECT_EQ(report(DType::kF32, {1, 2}, {1}, {}), "2 elements, oracle gave 1");
  EXPECT_EQ(report(DType::kF32, {1, 2, 9}, {1, 3, 3}, {}),
            "2 of 3 elements of [3] F32 differ:\n  [2] got 9 want 3\n  [1] got 2 want 3");
  EXPECT_EQ(report(DType::kF32, {}, {}, {}), "");
}

}  // namespace
}  // namespace dsv4::test
