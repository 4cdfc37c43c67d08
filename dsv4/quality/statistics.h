// Means with standard errors, and quantiles.

#pragma once

#include <cstdint>
#include <span>

namespace dsv4 {

// Running mean and standard error of the mean, s / sqrt(n) with s^2 = sum (x - mean)^2 / (n - 1);
// Welford's update, so that n values that are equal have an error of exactly 0. The error takes
// the values as independent; neighbouring tokens are not quite, so it is a lower bound.
class Mean {
 public:
  void add(double value);
  int64_t count() const { return count_; }
  double mean() const;            // NaN of none
  double standard_error() const;  // NaN of fewer than two

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

// The value at place q * (n - 1) of the sorted values, between two neighbours by straight line (as
// numpy's default). NaN of none.
double quantile(std::span<const double> sorted, double q);

}  // namespace dsv4
