// Quantiles of measured times, for the reports of benchmarks.

#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace dsv4::apps {

// The value below which a share q of them lies, 0 where there are none.
inline double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

inline nlohmann::ordered_json spread(const std::vector<double>& values) {
  return {{"p50", quantile(values, 0.5)},
          {"p90", quantile(values, 0.9)},
          {"p99", quantile(values, 0.99)},
          {"max", quantile(values, 1)},
          {"count", values.size()}};
}

}  // namespace dsv4::apps
