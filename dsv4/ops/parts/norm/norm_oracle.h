// fp64 oracles of norm.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/norm/norm.h"

namespace dsv4 {

std::vector<double> rms_norm_oracle(const RmsNormArgs& args);  // [t, d]
std::vector<double> head_norm_oracle(const Context& context,
                                     const HeadNormArgs& args);  // [rows, d]

}  // namespace dsv4
