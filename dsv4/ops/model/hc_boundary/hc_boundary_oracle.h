// fp64 oracle of hc_boundary.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

namespace dsv4 {

struct HcBoundaryWant {
  std::vector<double> streams, x, post, comb;  // [t, m, d], [t, d], [t, m], [t, m, m]
};

HcBoundaryWant hc_boundary_oracle(const HcBoundaryArgs& args);  // call before the op

}  // namespace dsv4
