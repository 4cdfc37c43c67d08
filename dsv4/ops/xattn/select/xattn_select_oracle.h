// Oracle of xattn_select.h: the rule, block by block. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4 {

struct XattnSelectWant {
  std::vector<double> counts;   // [b, h, q_blocks]
  std::vector<double> indices;  // [b, h, q_blocks, k_blocks]
};

XattnSelectWant xattn_select_oracle(const XattnSelectArgs& args);

}  // namespace dsv4
