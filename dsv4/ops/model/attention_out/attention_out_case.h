// What the test, the emulated test and the benchmark of attention_out.h share: the fp64 oracle and
// the builder of random arguments.

#pragma once

#include <vector>

#include "dsv4/ops/model/attention_out/attention_out.h"
#include "tests/harness/fill.h"

namespace dsv4 {

std::vector<double> attention_out_oracle(const Context& context,
                                         const AttentionOutArgs& args);  // [t, D]

namespace test {

struct AttentionOutShape {
  int64_t t, h, d, groups, width;  // width: of y
  DType dtype = DType::kBF16;      // of o and y
};

// All but the weights, which the caller adds: tests random ones (tests/harness/weights.h),
// benchmarks others for each call (bench/weight_pool.h). Memory: test::Arena or bench::Arena.
template <class Memory, class Random>
AttentionOutArgs random_attention_out(Memory& memory, Random& random, const AttentionOutShape& s) {
  const TensorView o = memory.input(s.dtype, {s.t, s.h, s.d});
  fill_normal(o, random);
  return {.o = o, .groups = s.groups, .y = memory.output(s.dtype, {s.t, s.width})};
}

}  // namespace test
}  // namespace dsv4
