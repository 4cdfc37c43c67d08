// fp64 oracle of linear.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4 {

std::vector<double> linear_oracle(const LinearArgs& args);  // [t, n]

// max over outputs of sum_k |x[t, k] * w[n, k]|, to which rounding errors of an output are
// relative.
double linear_magnitude(const LinearArgs& args);

}  // namespace dsv4
