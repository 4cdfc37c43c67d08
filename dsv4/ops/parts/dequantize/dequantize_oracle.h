// fp64 oracle of dequantize.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4 {

std::vector<double> dequantize_oracle(const DequantizeArgs& args);  // [n, k]

}  // namespace dsv4
