// Oracles of quantize_kbit.h: the reference of docs/spec/lowbit.md 1.2, block by block, and the
// error of every scale byte in fp64. Linked by tests and benchmarks only.

#pragma once

#include <array>
#include <span>
#include <vector>

#include "dsv4/ops/kbit/quantize_kbit.h"

namespace dsv4 {

struct QuantizedKbit {
  std::vector<double> planes;  // [n, ceil(k/32) * K], as int32
  std::vector<double> scales;  // [n, ceil(k/32)]
};

QuantizedKbit quantize_kbit_reference_oracle(const QuantizeKbitArgs& args);

// sum w (nearest value - z)^2 of a block for each of the 256 scale bytes. An empty `weights`: ones.
std::array<double, 256> scale_errors_oracle(const Codebook& codebook, std::span<const float> z,
                                            std::span<const double> weights);

}  // namespace dsv4
