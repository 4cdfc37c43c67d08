// fp64 oracles of mhc.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4 {

struct HcPreWant {
  std::vector<double> out, post, comb;  // [t, d], [t, m], [t, m, m]
};

HcPreWant hc_pre_oracle(const HcPreArgs& args);
std::vector<double> hc_post_oracle(const HcPostArgs& args);  // [t, m, d]; call before the op
std::vector<double> hc_head_oracle(const HcHeadArgs& args);  // [t, d]

}  // namespace dsv4
