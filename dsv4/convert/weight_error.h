// How far a converted weight is from its source, over all of its values:
//
//   SQNR = 10 log10(sum x^2 / sum (gain y - x)^2) dB
//
// A quantiser of least squared error gives weights that are too small on the whole: what it rounds
// away is lost, not replaced (at K = 2 a ninth of every product). gain = sum h x^2 / sum h x y
// undoes that, so that errors of a product scatter around zero (h: mean square of a column's
// inputs, 1 where unknown); a model feels the difference (docs/quality.md).
//
// Sums run in f64, row by row in order, so they do not depend on the number of threads.

#pragma once

#include <cstdint>
#include <optional>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct WeightError {
  double signal = 0, noise = 0, dot = 0;         // sums of x^2, (y - x)^2, x y
  double weighted_signal = 0, weighted_dot = 0;  // sums of h x^2, h x y
  double gain = 1;                               // what readers multiply y with

  // Adds rows: x the source, y what a reader will see, both [n, k] f32; h: [k] f32 or empty.
  void add(const ConstTensorView& x, const ConstTensorView& y, const ConstTensorView& h = {});
  // Chooses the gain, once all rows are in. Without a signal that y has a part of it stays 1.
  void correct_gain();
  // Empty when nothing was lost, whatever the signal.
  std::optional<double> sqnr_db() const;
};

}  // namespace dsv4
