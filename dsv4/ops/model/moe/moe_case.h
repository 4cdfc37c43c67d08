// What tests, emulated tests and the benchmark of moe.h and moe_hidden.h share: the fp64 oracles
// and the builder of random arguments.

#pragma once

#include <vector>

#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/model/moe/moe_hidden.h"
#include "tests/harness/fill.h"

namespace dsv4 {

// For args without a boundary.
std::vector<double> moe_oracle(const Context& context, const MoeArgs& args);  // [t, D]

struct MoeHiddenAnswer {
  std::vector<double> logits;         // [t, e]
  std::vector<double> chosen;         // [t, k]
  std::vector<double> hidden;         // as MoeHiddenArgs::hidden
  std::vector<double> shared_hidden;  // [t, s]
};
// For args without a boundary.
MoeHiddenAnswer moe_hidden_oracle(const Context& context, const MoeHiddenArgs& args);

namespace test {

// How experts are chosen: by a learned bias, or by a table of this dtype; kTies: by the logits.
enum class Choice { kLearned, kTies, kHash32, kHash64 };

struct MoeCallShape {
  int64_t t, d, e, k;
  Choice choice = Choice::kLearned;
  int64_t vocabulary = 50;
  DType x = DType::kBF16;
  double sigma = 1, bias_sigma = 0.2;  // of x and of the bias
};

// All but the experts, which the caller adds. gate(): the weight of the router, drawn after the
// tokens. Memory: test::Arena or bench::Arena.
template <class Memory, class Random, class Gate>
MoeArgs random_moe(Memory& memory, Random& random, const MoeCallShape& s, const Gate& gate) {
  const TensorView x = memory.input(s.x, {s.t, s.d}), ids = memory.input(DType::kI32, {s.t});
  fill_normal(x, random, s.sigma);
  fill_ints(ids, random, 0, s.vocabulary);
  MoeArgs args{.x = x,
               .ids = ids,
               .gate = gate(),
               .experts_per_token = s.k,
               .route_scale = 1.5f,
               .swiglu_limit = 1.5f,
               .acc = memory.output(DType::kF32, {s.t, s.d})};
  if (s.choice == Choice::kLearned) {
    const TensorView bias = memory.input(DType::kF32, {s.e});
    fill_normal(bias, random, s.bias_sigma);
    args.bias = bias;
  } else if (s.choice != Choice::kTies) {
    const DType dtype = s.choice == Choice::kHash32 ? DType::kI32 : DType::kI64;
    const TensorView table = memory.input(dtype, {s.vocabulary, s.k});
    fill_ints(table, random, 0, s.e);
    args.tid2eid = table;
  }
  return args;
}

}  // namespace test
}  // namespace dsv4
