// fp64 oracles of indexer.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/indexer/indexer.h"

namespace dsv4 {

std::vector<double> index_scores_oracle(const Context& context,
                                        const IndexScoresArgs& args);  // [t, n]
std::vector<double> top_k_oracle(const TopKArgs& args);                // [t, k]

}  // namespace dsv4
