#include "dsv4/cpu/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/base/rng.h"
#include "tests/harness/targets.h"

namespace dsv4::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> normal(int64_t n, double sigma) {
  Rng rng(static_cast<uint64_t>(n));
  std::vector<float> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>(sigma * rng.normal()));
  return x;
}

TEST(Reduce, MaxValue) {
  test::for_each_target([] {
    EXPECT_EQ(max_value(nullptr, 0), -kInf);
    for (int64_t n = 1; n <= 70; ++n) {
      std::vector<float> x = normal(n, 3);
      for (float& v : x) v -= 100;  // all values are below an accumulator's initial zero
      EXPECT_EQ(max_value(x.data(), n), *std::max_element(x.begin(), x.end()));
      for (size_t at = 0; at < x.size(); ++at) {
        const float before = x[at];
        x[at] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_TRUE(std::isnan(max_value(x.data(), n))) << at << " of " << n;
        x[at] = 1;
        EXPECT_EQ(max_value(x.data(), n), 1) << at << " of " << n;
        x[at] = before;
      }
      std::fill(x.begin(), x.end(), -kInf);
      EXPECT_EQ(max_value(x.data(), n), -kInf);
    }
  });
}

TEST(Reduce, SumExp) {
  test::for_each_target([] {
    for (const int64_t n : {0, 1, 2, 3, 15, 16, 17, 33, 70, 10'000}) {
      for (const double sigma : {0.1, 5.0, 300.0}) {
        std::vector<float> x = normal(n, sigma);
        if (n > 2) x[1] = -kInf;
        const double shift = n == 0 ? 0 : static_cast<double>(max_value(x.data(), n));
        for (const double factor : {1.0, 0.37, 20.0}) {
          double want = 0;
          for (const float v : x) want += std::exp((static_cast<double>(v) - shift) * factor);
          // Positive terms within 2 ulps each; the sum has at most n roundings.
          const double allowed = want * (3 + static_cast<double>(n)) * 0x1p-53;
          EXPECT_NEAR(sum_exp(x.data(), n, shift, factor), want, allowed) << n << " " << sigma;
        }
      }
    }
  });
}

TEST(Reduce, SumExpFarBelowTheShift) {
  test::for_each_target([] {
    const std::vector<float> x(20, -3e38f);
    EXPECT_LT(sum_exp(x.data(), 20, 3e38, 1e30), 1e-300);
    EXPECT_EQ(sum_exp(x.data(), 20, static_cast<double>(-3e38f), 1e30), 20);
  });
}

}  // namespace
}  // namespace dsv4::cpu
