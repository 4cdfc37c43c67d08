// fp64 oracle of rope.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/rope/rope.h"

namespace dsv4 {

// [t, h, d], from the current values of args.x (contiguous); the op writes in place, so call this
// first.
std::vector<double> rope_oracle(const RopeArgs& args);

}  // namespace dsv4
