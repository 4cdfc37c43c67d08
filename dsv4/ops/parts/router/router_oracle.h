// fp64 oracle of router.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/router/router.h"

namespace dsv4 {

struct RouterAnswer {
  std::vector<double> experts, weights;  // [t, k]
};

RouterAnswer router_oracle(const RouterArgs& args);

}  // namespace dsv4
