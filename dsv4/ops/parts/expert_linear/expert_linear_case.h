// What the test and the benchmark of expert_linear.h share: the fp64 oracle, and rows per expert.

#pragma once

#include <algorithm>
#include <vector>

#include "dsv4/ops/parts/expert_linear/expert_linear.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> expert_linear_oracle(const ExpertLinearArgs& args);  // [rows, n]
// max over outputs of sum_k |x[r, k] * w[n, k]|
double expert_linear_magnitude(const ExpertLinearArgs& args);

namespace test {

// Memory: test::Arena or bench::Arena. rows_of: [e]
template <class Memory>
ExpertLinearArgs random_expert_linear(Memory& memory, Rng& rng, DType dtype,
                                      std::span<const WeightView> weights,
                                      const std::vector<int32_t>& rows_of) {
  const TensorView offsets = memory.input(DType::kI32, {std::ssize(rows_of) + 1});
  int32_t* end = offsets.template as<int32_t>();
  end[0] = 0;
  for (size_t e = 0; e < rows_of.size(); ++e) end[e + 1] = end[e] + rows_of[e];
  const int64_t rows = end[rows_of.size()];
  const TensorView x = memory.input(dtype, {rows, weights[0].k});
  fill_normal(x, rng);
  return {.x = x,
          .weights = weights,
          .offsets = offsets,
          .out = memory.output(dtype, {rows, weights[0].n})};
}

}  // namespace test
}  // namespace dsv4
