// The error of a converted weight, over all of its values:
//
//   SQNR = 10 log10(sum x^2 / sum (gain y - x)^2) dB
//
// A least-squares quantizer shrinks the weights: the rounded-off part is lost (at K = 2 a ninth of
// every dot product). gain = sum h x^2 / sum h x y undoes that, so that errors of a dot product
// scatter around zero (h: mean square of a column's inputs, 1 where unknown). The effect on a model
// is measurable (docs/quality.md).
//
// Sums are in f64, row by row in order (ops/kbit/row_errors.h), so they do not depend on the number
// of threads, nor on where they are added.

#pragma once

#include <cstdint>
#include <optional>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct WeightError {
  double signal = 0, noise = 0, dot = 0;         // sums of x^2, (y - x)^2, x y
  double weighted_signal = 0, weighted_dot = 0;  // sums of h x^2, h x y
  double gain = 1;                               // the factor that readers apply to y

  // Adds rows: x the source, y the decoded result, both [n, k] f32; h: [k] f32 or empty.
  void add(const ConstTensorView& x, const ConstTensorView& y, const ConstTensorView& h = {});
  // Adds rows by their sums, [n, 5] F64 of the op row_errors in host memory.
  void add_sums(const ConstTensorView& sums);
  // Computes the gain; call it after all rows. It stays 1 when x and y are not correlated.
  void correct_gain();
  // Empty when the conversion was lossless, whatever the signal.
  std::optional<double> sqnr_db() const;
};

}  // namespace dsv4
