// fp64 oracle of index_select.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/index_select/index_select.h"

namespace dsv4 {

std::vector<double> index_select_oracle(const Context& context,
                                        const IndexSelectArgs& args);  // [t, k]

}  // namespace dsv4
