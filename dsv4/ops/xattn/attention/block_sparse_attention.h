// Attention over listed blocks of keys (block-sparse prefill). For query i of a block row:
//
//   z_j = scale * (q_i . k_j),   m = max_j z_j
//   out_i = sum_j exp(z_j - m) v_j / sum_j exp(z_j - m),   lse_i = ln(sum_j exp(z_j))
//
// where j runs over the keys of the row's listed blocks that query i sees (prefill_batch.h says
// which). h_q / h_kv query heads share a key head. Without lists every visible block counts: dense
// attention. kOfficial rounds exp(z_j - m) to the dtype of v for the value product, relative to the
// largest logit so far; the denominator sums it unrounded in f32.
//
// A query that sees no key gives out = 0 and lse = -inf. Listed blocks that no query of the row
// sees are ignored; the values of keys past the end of a sequence are never used, even NaN.
//
// Source: docs/spec/xattention.md 1.6 and 4.1; Block-Sparse-Attention for what a mask means.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/xattn/attention/prefill_batch.h"

namespace dsv4 {

// The key blocks of every query block, with room for those of every sequence; device
// implementations cannot check that, nor counts and indices. Rows past the last query block of a
// sequence have count 0.
template <class View>
struct BlockLists {
  View counts;   // [b, h_q, q_blocks] I32
  View indices;  // [b, h_q, q_blocks, k_blocks] I32: the first counts[..] are ascending key blocks

  bool empty() const { return counts.empty(); }
};

struct BlockSparseAttentionArgs {
  PrefillBatch batch;
  ConstTensorView q;           // [t_q, h_q, d] f32|bf16|f16
  ConstTensorView k;           // [t_kv, h_kv, d], or with page_table [pages, page_size, h_kv, d]
  ConstTensorView v;           // [t_kv, h_kv, d_v], or [pages, page_size, h_kv, d_v]; dtypes as q
  ConstTensorView page_table;  // [b, n] I32: pages of a sequence in order; empty: no pages
  int64_t block = 128;         // positions of a block: 64 or 128
  BlockLists<ConstTensorView> lists;  // empty: dense
  // Dense only, where no list says it: the most query blocks of a sequence, at least 1.
  int64_t max_q_blocks = 0;
  float scale = 0.f;  // > 0; usually 1 / sqrt(d)
  TensorView out;     // [t_q, h_q, d_v], dtype of q
  TensorView lse;     // [h_q, t_q] f32; or empty
};

extern const Op<BlockSparseAttentionArgs> block_sparse_attention;

}  // namespace dsv4
