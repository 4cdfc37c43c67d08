// fp64 oracle of projection.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4 {

// [t, n] x w^T; under official numerics with Q8 activations where the weight format requires them
std::vector<double> projection_oracle(const Context& context, const ConstTensorView& x,
                                      const WeightView& weight);

}  // namespace dsv4
