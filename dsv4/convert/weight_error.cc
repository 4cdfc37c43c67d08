#include "dsv4/convert/weight_error.h"

#include <cmath>

#include "dsv4/ops/kbit/row_errors.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

void WeightError::add(const ConstTensorView& x, const ConstTensorView& y,
                      const ConstTensorView& h) {
  const Buffer sums(DType::kF64, {x.dim(0), kErrorSums});
  row_errors({}, {.x = x, .y = y, .importance = h, .sums = sums});
  add_sums(sums);
}

void WeightError::add_sums(const ConstTensorView& sums) {
  for (int64_t row = 0; row < sums.dim(0); ++row) {
    const double* of = sums.row<double>(row);
    signal += of[0];
    noise += of[1];
    dot += of[2];
    weighted_signal += of[3];
    weighted_dot += of[4];
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
