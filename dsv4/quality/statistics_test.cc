#include "dsv4/quality/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

TEST(Mean, ByHand) {
  Mean mean;
  EXPECT_TRUE(std::isnan(mean.mean()));
  mean.add(2);
  EXPECT_EQ(mean.mean(), 2);
  EXPECT_TRUE(std::isnan(mean.standard_error()));
  mean.add(4);
  mean.add(9);
  EXPECT_EQ(mean.count(), 3);
  EXPECT_EQ(mean.mean(), 5);
  // squares 9 + 1 + 16 = 26; variance 13; error sqrt(13 / 3)
  EXPECT_DOUBLE_EQ(mean.standard_error(), std::sqrt(13.0 / 3));
}

TEST(Mean, EqualValuesHaveZeroError) {
  Mean mean;
  for (int i = 0; i < 1000; ++i) mean.add(0.1);
  EXPECT_EQ(mean.mean(), 0.1);
  EXPECT_EQ(mean.standard_error(), 0);
}

TEST(Mean, AgreesWithTwoPasses) {
  Rng rng(3);
  std::vector<double> values;
  Mean mean;
  for (int i = 0; i < 10000; ++i) {
    values.push_back(1e6 + rng.normal());  // a plain sum of squares would lose all digits
    mean.add(values.back());
  }
  long double sum = 0, squares = 0;
  for (const double x : values) sum += x;
  const long double middle = sum / 10000;
  for (const double x : values) squares += (x - middle) * (x - middle);
  EXPECT_NEAR(mean.mean(), static_cast<double>(middle), 1e-8);
  EXPECT_NEAR(mean.standard_error(), static_cast<double>(std::sqrt(squares / 9999 / 10000)), 1e-9);
}

TEST(Quantile, MatchesNumpy) {
  const std::vector<double> values = {1, 2, 4, 8, 16};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 0.5), 4);
  EXPECT_EQ(quantile(values, 1), 16);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 12.8);  // rank 3.6: 8 + 0.6 * 8
  EXPECT_EQ(quantile(std::vector<double>{3, 5}, 0.5), 4);
  EXPECT_EQ(quantile(std::vector<double>{7}, 0.99), 7);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kInvalidArgument, [&] { quantile(values, 1.5); }), "quantile 1.5"));
}

}  // namespace
}  // namespace dsv4
