// fp64 oracle of sparse_mla.h. Linked by tests and benchmarks only.

#pragma once

#include <span>
#include <vector>

#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

namespace dsv4 {

// In the shapes of the arguments' out and lse. Device implementations skip indices that are not
// below their pool's rows; so does the oracle.
struct SparseMlaWant {
  std::vector<double> out;         // [b, s_q, h, d_v]
  std::vector<double> lse;         // [b, h, s_q]
  std::vector<double> max_logits;  // [b, h, s_q]
};

SparseMlaWant sparse_mla_oracle(const Context& context, const SparseMlaArgs& args);

struct SparseMlaHeadWant {
  std::vector<double> out;  // [d_v]
  double lse = 0, max_logit = 0;
};

// Some heads of one query of a request, where all of them would take too long; without the inverse
// RoPE.
std::vector<SparseMlaHeadWant> sparse_mla_oracle(const Context& context, const SparseMlaArgs& args,
                                                 int64_t request, int64_t query,
                                                 std::span<const int64_t> heads);

}  // namespace dsv4
