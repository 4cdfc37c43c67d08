// fp64 oracle of moe.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/moe/moe.h"

namespace dsv4 {

// For args without a boundary.
std::vector<double> moe_oracle(const Context& context, const MoeArgs& args);  // [t, D]

}  // namespace dsv4
