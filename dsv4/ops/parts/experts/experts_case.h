// What tests, emulated tests and benchmarks of experts.h share: the fp64 oracle and the builder of
// random arguments. Weights are random already (tests/harness/weights.h, bench/weight_pool.h).

#pragma once

#include <vector>

#include "dsv4/ops/parts/experts/experts.h"
#include "tests/harness/fill.h"

namespace dsv4 {

// acc after the call, given its current contents. [t, d]
std::vector<double> experts_oracle(const Context& context, const ExpertsArgs& args);
// Without rounding in between: the largest change of acc for each unit of relative error of every
// weight and every h, to first order.
double experts_magnitude(const ExpertsArgs& args);

namespace test {

struct ExpertsShape {
  int64_t t, k, d;
  DType x = DType::kBF16;
  double sigma = 1;   // of x
  int64_t only = -1;  // the expert of all pairs; -1: random ones, with repeats, which count twice
};

// Memory: test::Arena or bench::Arena.
template <class Memory>
ExpertsArgs random_experts(Memory& memory, Rng& rng, const ExpertsShape& s,
                           const ExpertStack& stack) {
  const TensorView x = memory.input(s.x, {s.t, s.d});
  const TensorView ids = memory.input(DType::kI32, {s.t, s.k});
  const TensorView weights = memory.input(DType::kF32, {s.t, s.k});
  const TensorView acc = memory.inout(DType::kF32, {s.t, s.d});
  fill_normal(x, rng, s.sigma);
  fill_ints(ids, rng, s.only < 0 ? 0 : s.only, s.only < 0 ? stack.size() : s.only + 1);
  fill_uniform(weights, rng, 0.05, 0.6);
  fill_normal(acc, rng);
  return {
      .x = x, .stack = stack, .experts = ids, .weights = weights, .swiglu_limit = 1.5f, .acc = acc};
}

// The call of token i alone.
inline ExpertsArgs one_token(const ExpertsArgs& a, int64_t i) {
  ExpertsArgs one = a;
  one.x = a.x.slice(0, i, i + 1);
  if (!a.experts.empty()) {
    one.experts = a.experts.slice(0, i, i + 1);
    one.weights = a.weights.slice(0, i, i + 1);
  }
  if (!a.addend.empty()) one.addend = a.addend.slice(0, i, i + 1);
  one.acc = a.acc.slice(0, i, i + 1);
  return one;
}

}  // namespace test
}  // namespace dsv4
