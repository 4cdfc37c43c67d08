// The portable CUDA implementation of block_sparse_attention.h: any shape up to 256 columns, f32
// arithmetic.

#pragma once

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4::block_sparse_attention_kernel::cuda {

const char* reject(const Context& context, const BlockSparseAttentionArgs& args);
void run(const Context& context, const BlockSparseAttentionArgs& args);

}  // namespace dsv4::block_sparse_attention_kernel::cuda
