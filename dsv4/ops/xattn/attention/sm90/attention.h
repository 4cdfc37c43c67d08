// The Hopper implementation of block_sparse_attention.h (sm90_a: wgmma and TMA).

#pragma once

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4::block_sparse_attention_kernel::sm90 {

const char* reject(const Context& context, const BlockSparseAttentionArgs& args);
void run(const Context& context, const BlockSparseAttentionArgs& args);

}  // namespace dsv4::block_sparse_attention_kernel::sm90
