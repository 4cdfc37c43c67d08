// fp64 oracle of sparse_mla.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {

struct SparseMlaWant {
  std::vector<double> out;  // [t, h, d]
  std::vector<double> lse;  // [t, h]
};

SparseMlaWant sparse_mla_oracle(const Context& context, const SparseMlaArgs& args);

}  // namespace dsv4
