// CPU rows of indexer.h.

#pragma once

#include "dsv4/ops/indexer/indexer.h"

namespace dsv4 {

void index_scores_cpu(const Context& context, const IndexScoresArgs& args);
void top_k_cpu(const Context& context, const TopKArgs& args);

}  // namespace dsv4
