#include "dsv4/convert/weight_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/cpu/parallel.h"

namespace dsv4 {
namespace {

WeightError error_of_row(const float* x, const float* y, int64_t k) {
  WeightError error;
  for (int64_t i = 0; i < k; ++i) {
    const double value = static_cast<double>(x[i]), off = static_cast<double>(y[i]) - value;
    error.signal += value * value;
    error.noise += off * off;
    error.largest = std::max(error.largest, std::abs(off));
  }
  return error;
}

}  // namespace

void WeightError::add(const ConstTensorView& x, const ConstTensorView& y) {
  Dim n("n"), k("k");
  expect("x", x, {DType::kF32}, {n, k});
  expect("y", y, {DType::kF32}, {n, k});
  std::vector<WeightError> rows(static_cast<size_t>(*n));
#pragma omp parallel for schedule(static) if (cpu::worth_sharing(x.numel()))
  for (int64_t row = 0; row < *n; ++row)
    rows[static_cast<size_t>(row)] = error_of_row(x.row<float>(row), y.row<float>(row), *k);
  for (const WeightError& row : rows) {
    signal += row.signal;
    noise += row.noise;
    largest = std::max(largest, row.largest);
  }
}

std::optional<double> WeightError::sqnr_db() const {
  if (noise == 0) return std::nullopt;
  // A source of zeros that came back as anything else has no signal: the smallest number JSON
  // keeps.
  return signal == 0 ? -1e3 : 10 * std::log10(signal / noise);
}

}  // namespace dsv4
