// fp64 oracle of block_sparse_attention.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4 {

struct BlockSparseAttentionWant {
  std::vector<double> out;  // [t_q, h_q, d_v]
  std::vector<double> lse;  // [h_q, t_q]
};

// P is not rounded, whatever the numerics.
BlockSparseAttentionWant block_sparse_attention_oracle(const BlockSparseAttentionArgs& args);

}  // namespace dsv4
