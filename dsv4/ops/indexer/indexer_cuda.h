// CUDA rows of indexer.h.

#pragma once

#include "dsv4/ops/indexer/indexer.h"

namespace dsv4 {

const char* index_scores_cuda_reject(const Context& context, const IndexScoresArgs& args);
void index_scores_cuda(const Context& context, const IndexScoresArgs& args);

const char* index_scores_mma_reject(const Context& context, const IndexScoresArgs& args);
void index_scores_mma(const Context& context, const IndexScoresArgs& args);

void top_k_cuda(const Context& context, const TopKArgs& args);

}  // namespace dsv4
