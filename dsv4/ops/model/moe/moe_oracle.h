// fp64 oracles of moe.h and moe_hidden.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/model/moe/moe_hidden.h"

namespace dsv4 {

// For args without a boundary.
std::vector<double> moe_oracle(const Context& context, const MoeArgs& args);  // [t, D]

struct MoeHiddenAnswer {
  std::vector<double> chosen;         // [t, k]
  std::vector<double> hidden;         // as MoeHiddenArgs::hidden
  std::vector<double> shared_hidden;  // [t, s]
};
// For args without a boundary.
MoeHiddenAnswer moe_hidden_oracle(const Context& context, const MoeHiddenArgs& args);

}  // namespace dsv4
