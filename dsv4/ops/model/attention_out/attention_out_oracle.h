// fp64 oracle of attention_out.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/attention_out/attention_out.h"

namespace dsv4 {

std::vector<double> attention_out_oracle(const Context& context,
                                         const AttentionOutArgs& args);  // [t, D]

}  // namespace dsv4
