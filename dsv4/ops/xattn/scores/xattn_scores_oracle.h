// fp64 oracle of xattn_scores.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4 {

std::vector<double> xattn_scores_oracle(const XattnScoresArgs& args);  // [b, h, q_blocks, k_blocks]

}  // namespace dsv4
