// Means with standard errors, and quantiles.

#pragma once

#include <cstdint>
#include <span>

namespace dsv4 {

// Running mean and standard error of the mean, s / sqrt(n) with s^2 = sum (x - mean)^2 / (n - 1);
// Welford's update, so that n equal values have an error of exactly 0. The error assumes
// independent values; neighboring tokens are not quite independent, so it is a lower bound.
class Mean {
 public:
  void add(double value);
  int64_t count() const { return count_; }
  double mean() const;            // NaN without values
  double standard_error() const;  // NaN with fewer than two values

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

// The value at rank q * (n - 1) of the sorted values, interpolated linearly between two neighbors
// (numpy's default). NaN without values.
double quantile(std::span<const double> sorted, double q);

}  // namespace dsv4
