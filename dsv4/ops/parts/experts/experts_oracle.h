// fp64 oracle of experts.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4 {

// acc after the call, given its current contents. [t, d]
std::vector<double> experts_oracle(const Context& context, const ExpertsArgs& args);

}  // namespace dsv4
