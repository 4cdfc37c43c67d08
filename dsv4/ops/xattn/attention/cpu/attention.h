// The CPU implementation of block_sparse_attention.h: any shape, f32 inside.

#pragma once

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4::block_sparse_attention_kernel::cpu {

void run(const Context& context, const BlockSparseAttentionArgs& args);

}  // namespace dsv4::block_sparse_attention_kernel::cpu
