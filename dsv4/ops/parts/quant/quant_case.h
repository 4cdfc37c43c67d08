// fp64 oracles of quant.h, and arguments with random x for its tests and benchmarks.

#pragma once

#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/ops/parts/quant/quant.h"
#include "tests/harness/fill.h"

namespace dsv4 {

struct QuantizeQ8Want {
  std::vector<double> codes;   // [t, k] values of the e4m3 codes
  std::vector<double> scales;  // [t, ceil(k / group)] values of the scales
};

QuantizeQ8Want quantize_q8_oracle(const QuantizeQ8Args& args);
std::vector<double> fake_quant_oracle(const FakeQuantArgs& args);  // [t, k]
std::vector<double> hadamard_oracle(const HadamardArgs& args);     // [t, n]

}  // namespace dsv4

namespace dsv4::test {

// Outputs for given x.
template <class Memory>
QuantizeQ8Args quantize_q8_of(Memory& memory, const TensorView& x, int group) {
  const int64_t t = x.dim(0), k = x.dim(1);
  return {.x = x,
          .codes = memory.output(DType::kE4M3, {t, k}),
          .scales = memory.output(DType::kE8M0, {t, ceil_div(k, group)}),
          .group = group};
}
template <class Memory>
FakeQuantArgs fake_quant_of(Memory& memory, const TensorView& x, DType out, FakeQuantFormat format,
                            int group) {
  return {
      .x = x, .out = memory.output(out, {x.dim(0), x.dim(1)}), .format = format, .group = group};
}

template <class Memory, class Random>
TensorView random_x(Memory& memory, Random& random, DType dtype, int64_t t, int64_t k) {
  const TensorView x = memory.input(dtype, {t, k});
  fill_normal(x, random, 3.0);
  return x;
}
template <class Memory, class Random>
HadamardArgs random_hadamard(Memory& memory, Random& random, int64_t t, int64_t n, DType in,
                             DType out) {
  return {.x = random_x(memory, random, in, t, n), .out = memory.output(out, {t, n})};
}

}  // namespace dsv4::test
