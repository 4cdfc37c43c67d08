// What tests and benchmarks of dequantize.h share: the fp64 oracle and the builder of arguments.
// The weight is random already (tests/harness/weights.h, bench/weight_pool.h).

#pragma once

#include <vector>

#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4 {

inline std::vector<double> dequantize_oracle(const DequantizeArgs& args) {  // [n, k]
  std::vector<double> out;
  for (int64_t n = 0; n < args.weight.n; ++n) {
    for (int64_t k = 0; k < args.weight.k; ++k) out.push_back(weight_value(args.weight, n, k));
  }
  return out;
}

namespace test {

// Memory: test::Arena or bench::Arena.
template <class Memory>
DequantizeArgs dequantize_to(Memory& memory, DType dtype, const WeightView& weight) {
  return {.weight = weight, .out = memory.output(dtype, {weight.n, weight.k})};
}

}  // namespace test
}  // namespace dsv4
