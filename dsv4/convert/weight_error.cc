#include "dsv4/convert/weight_error.h"

#include <cmath>
#include <vector>

#include "dsv4/cpu/parallel.h"

namespace dsv4 {
namespace {

// h: [k] or null
WeightError error_of_row(const float* x, const float* y, const float* h, int64_t k) {
  WeightError error;
  for (int64_t i = 0; i < k; ++i) {
    const double value = static_cast<double>(x[i]), off = static_cast<double>(y[i]) - value;
    error.signal += value * value;
    error.noise += off * off;
    const double product = value * static_cast<double>(y[i]);
    error.dot += product;
    if (h == nullptr) continue;
    error.weighted_signal += static_cast<double>(h[i]) * value * value;
    error.weighted_dot += static_cast<double>(h[i]) * product;
  }
  if (h == nullptr) error.weighted_signal = error.signal, error.weighted_dot = error.dot;
  return error;
}

}  // namespace

void WeightError::add(const ConstTensorView& x, const ConstTensorView& y,
                      const ConstTensorView& h) {
  Dim n("n"), k("k");
  expect("x", x, {DType::kF32}, {n, k});
  expect("y", y, {DType::kF32}, {n, k});
  if (!h.empty()) expect("h", h, {DType::kF32}, {k});
  const float* weights = h.empty() ? nullptr : h.as<float>();
  std::vector<WeightError> rows(static_cast<size_t>(*n));
#pragma omp parallel for schedule(static) if (cpu::worth_sharing(x.numel()))
  for (int64_t row = 0; row < *n; ++row)
    rows[static_cast<size_t>(row)] =
        error_of_row(x.row<float>(row), y.row<float>(row), weights, *k);
  for (const WeightError& row : rows) {
    signal += row.signal;
    noise += row.noise;
    dot += row.dot;
    weighted_signal += row.weighted_signal;
    weighted_dot += row.weighted_dot;
  }
}

void WeightError::correct_gain() {
  if (weighted_signal > 0 && weighted_dot > 0) gain = weighted_signal / weighted_dot;
}

std::optional<double> WeightError::sqnr_db() const {
  if (noise == 0) return std::nullopt;
  // sum (g y - x)^2 = noise + (g - 1) (2 sum (y - x) y + (g - 1) sum y^2)
  const double y_squared = noise - signal + 2 * dot, more = gain - 1;
  const double left = noise + more * (2 * (y_squared - dot) + more * y_squared);
  // A zero source that decodes to anything else has no signal: return a very small number that JSON
  // can store.
  return signal == 0 ? -1e3 : 10 * std::log10(signal / left);
}

}  // namespace dsv4
