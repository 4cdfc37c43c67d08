// How far a converted weight is from its source, over all of its values:
//
//   SQNR = 10 log10(sum x^2 / sum (y - x)^2) dB,  largest |y - x|
//
// Sums run in f64, row by row in order, so they do not depend on the number of threads.

#pragma once

#include <cstdint>
#include <optional>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct WeightError {
  double signal = 0, noise = 0, largest = 0;

  // Adds rows: x the source, y what a reader will see. Both [n, k] f32.
  void add(const ConstTensorView& x, const ConstTensorView& y);
  // Empty when nothing was lost, whatever the signal.
  std::optional<double> sqnr_db() const;
};

}  // namespace dsv4
