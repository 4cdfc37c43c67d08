// Sizes of a launch of the Hopper kernel, and its instances.

#pragma once

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4 {
class Device;
}

namespace dsv4::block_sparse_attention_kernel::sm90 {

inline constexpr int64_t kBlockSize = 128;

inline int64_t page_size_of(const BlockSparseAttentionArgs& args) {
  return args.page_table.empty() ? 0 : args.k.dim(1);
}

inline int64_t q_blocks_of(const BlockSparseAttentionArgs& args) {
  if (!args.lists.empty()) return args.lists.counts.dim(2);
  // A sequence that starts inside a block touches one block more than its length says.
  return args.max_q_blocks > 0 ? args.max_q_blocks : args.q.dim(0) / kBlockSize + 2;
}

inline int64_t items_of(const BlockSparseAttentionArgs& args) {
  return args.batch.size() * args.q.dim(1) * q_blocks_of(args);
}

// Launches the kernel for keys of kD and values of kDv columns (instance.cu).
template <int kD, int kDv>
void run_heads(Device& device, const BlockSparseAttentionArgs& args);

}  // namespace dsv4::block_sparse_attention_kernel::sm90
