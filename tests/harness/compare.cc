#include "tests/harness/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tests/harness/arena.h"

namespace dsv4::test {

double ulp(DType dtype, double value) {
  int mantissa = 0, min_exponent = 0;
  switch (dtype) {
    case DType::kF64:
      mantissa = 52, min_exponent = -1022;
      break;
    case DType::kF32:
      mantissa = 23, min_exponent = -126;
      break;
    case DType::kBF16:
      mantissa = 7, min_exponent = -126;
      break;
    case DType::kF16:
      mantissa = 10, min_exponent = -14;
      break;
    case DType::kE4M3:
      mantissa = 3, min_exponent = -6;
      break;
    default:
      return 0;  // integers and scales: exact
  }
  if (!std::isfinite(value)) return 0;
  const int exponent = value == 0 ? min_exponent : std::max(std::ilogb(value), min_exponent);
  return std::ldexp(1.0, exponent - mantissa);
}

std::string compare(const ConstTensorView& got, const std::vector<double>& want,
                    const Tolerance& tolerance) {
  if (got.numel() != static_cast<int64_t>(want.size())) {
    return fmt::format("{} elements, oracle gave {}", got.numel(), want.size());
  }
  struct Miss {
    double excess;
    int64_t index;
    double got, want;
  };
  double largest = 0;
  for (const double w : want) {
    if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
  }
  std::vector<Miss> misses;
  double dot = 0, gg = 0, ww = 0;
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double g = value_at(got, i), w = want[static_cast<size_t>(i)];
    if (std::isnan(g) || std::isnan(w) || std::isinf(g) || std::isinf(w)) {
      const bool same = (std::isnan(g) && std::isnan(w)) || g == w;
      if (!same) misses.push_back({HUGE_VAL, i, g, w});
      continue;
    }
    dot += g * w, gg += g * g, ww += w * w;
    const double allowed =
        tolerance.ulps * ulp(got.dtype, w) + tolerance.abs + tolerance.rel * largest;
    if (std::abs(g - w) > allowed) misses.push_back({std::abs(g - w) - allowed, i, g, w});
  }
  std::string report;
  if (!misses.empty()) {
    std::sort(misses.begin(), misses.end(),
              [](const Miss& a, const Miss& b) { return a.excess > b.excess; });
    report =
        fmt::format("{} of {} elements of {} differ:", misses.size(), got.numel(), to_string(got));
    for (size_t i = 0; i < std::min<size_t>(misses.size(), 10); ++i) {
      report += fmt::format("\n  [{}] got {:.9g} want {:.9g}", misses[i].index, misses[i].got,
                            misses[i].want);
    }
  }
  const bool has_cosine = got.numel() >= 8 && gg > 0 && ww > 0 && ulp(got.dtype, 1) > 0;
  if (has_cosine && 1 - dot / std::sqrt(gg * ww) > tolerance.cosine) {
    report += fmt::format("\n  1 - cosine = {:.3g}", 1 - dot / std::sqrt(gg * ww));
  }
  return report;
}

}  // namespace dsv4::test
