// The implementations of indexer.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/indexer/indexer.h"

namespace dsv4 {

void index_scores_cpu(const Context& context, const IndexScoresArgs& args);
void top_k_cpu(const Context& context, const TopKArgs& args);
HostBytes top_k_cpu_bytes(const TopKArgs& args);

const char* index_scores_cuda_reject(const Context& context, const IndexScoresArgs& args);
void index_scores_cuda(const Context& context, const IndexScoresArgs& args);

const char* index_scores_cuda_mma_reject(const Context& context, const IndexScoresArgs& args);
void index_scores_cuda_mma(const Context& context, const IndexScoresArgs& args);

void top_k_cuda(const Context& context, const TopKArgs& args);

}  // namespace dsv4
