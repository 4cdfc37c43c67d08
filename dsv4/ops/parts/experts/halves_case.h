// fp64 oracles of halves.h, and random arguments for its test and benchmark.

#pragma once

#include <vector>

#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/halves.h"

namespace dsv4 {

std::vector<double> experts_hidden_oracle(const Context& context,
                                          const ExpertsHiddenArgs& args);  // [t * k, i]
// acc after the call, given its current contents. [t, n]
std::vector<double> experts_output_oracle(const Context& context, const ExpertsOutputArgs& args);

namespace test {

// The halves of a call of experts; what stands between them has the dtype of activations.
template <class Memory>
ExpertsHiddenArgs first_half(Memory& memory, const Context& context, const ExpertsArgs& whole) {
  return {.x = whole.x,
          .stack = whole.stack,
          .experts = whole.experts,
          .weights = whole.weights,
          .swiglu_limit = whole.swiglu_limit,
          .hidden = memory.output(activation_dtype(context),
                                  {whole.x.dim(0) * slots(whole), whole.stack.inner()})};
}

inline ExpertsOutputArgs second_half(const ConstTensorView& hidden, const ExpertsArgs& whole) {
  return {.hidden = hidden,
          .stack = whole.stack,
          .experts = whole.experts,
          .acc = whole.acc,
          .add = whole.add};
}

}  // namespace test
}  // namespace dsv4
