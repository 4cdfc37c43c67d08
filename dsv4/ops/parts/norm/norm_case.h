// fp64 oracles of norm.h, and random arguments for its tests and benchmarks.

#pragma once

#include <vector>

#include "dsv4/ops/parts/norm/norm.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> rms_norm_oracle(const RmsNormArgs& args);  // [t, d]
std::vector<double> head_norm_oracle(const Context& context,
                                     const HeadNormArgs& args);  // [rows, d]

}  // namespace dsv4

namespace dsv4::test {

template <class Memory, class Random>
RmsNormArgs random_rms_norm(Memory& memory, Random& random, int64_t t, int64_t d, DType x_dtype,
                            DType weight_dtype, DType out_dtype) {
  const TensorView x = memory.input(x_dtype, {t, d}), weight = memory.input(weight_dtype, {d});
  fill_normal(x, random, 3.0);
  fill_normal(weight, random, 0.5, 1.0);
  return {.x = x, .weight = weight, .out = memory.output(out_dtype, {t, d})};
}

template <class Memory, class Random>
HeadNormArgs random_head_norm(Memory& memory, Random& random, int64_t rows, int64_t d,
                              DType dtype) {
  const TensorView x = memory.input(dtype, {rows, d});
  fill_normal(x, random, 2.0);
  return {.x = x, .out = memory.output(dtype, {rows, d})};
}

}  // namespace dsv4::test
