#include "dsv4/quality/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

void Mean::add(double value) {
  ++count_;
  const double before = value - mean_;
  mean_ += before / static_cast<double>(count_);
  squares_ += before * (value - mean_);
}

double Mean::mean() const {
  return count_ > 0 ? mean_ : kNone;
}

double Mean::standard_error() const {
  if (count_ < 2) return kNone;
  const auto n = static_cast<double>(count_);
  return std::sqrt(squares_ / (n - 1) / n);
}

double quantile(std::span<const double> sorted, double q) {
  DSV4_CHECK(q >= 0 && q <= 1, "quantile {}", q);
  if (sorted.empty()) return kNone;
  const double place = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] + part * (sorted[above] - sorted[below]);
}

}  // namespace dsv4
