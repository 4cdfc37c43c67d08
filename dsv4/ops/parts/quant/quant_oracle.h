// fp64 oracles of quant.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4 {

struct QuantizeQ8Want {
  std::vector<double> codes;   // [t, k] values of the e4m3 codes
  std::vector<double> scales;  // [t, ceil(k / group)] values of the scales
};

QuantizeQ8Want quantize_q8_oracle(const QuantizeQ8Args& args);
std::vector<double> fake_quant_oracle(const FakeQuantArgs& args);  // [t, k]
std::vector<double> hadamard_oracle(const HadamardArgs& args);     // [t, n]

}  // namespace dsv4
