// What tests and benchmarks of quantize_kbit.h share: its oracles, which are the reference of
// docs/spec/lowbit.md 1.2, block by block, and the error of every scale byte in fp64; and the
// builder of arguments.

#pragma once

#include <array>
#include <span>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/formats/kbit.h"
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

namespace test {

// Memory: test::Arena or bench::Arena.
template <class Memory>
QuantizeKbitArgs quantize_kbit_of(Memory& memory, const ConstTensorView& x,
                                  const Codebook& codebook, ScaleChoice choice) {
  const int64_t n = x.dim(0), blocks = ceil_div(x.dim(1), kKbitBlock);
  return {.x = x,
          .codebook = codebook,
          .choice = choice,
          .planes = memory.output(DType::kI32, {n, blocks * codebook.bits}),
          .scales = memory.output(DType::kU8, {n, blocks})};
}

}  // namespace test
}  // namespace dsv4
