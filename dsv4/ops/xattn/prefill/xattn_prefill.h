// Block-sparse prefill attention in one call (XAttention): scores of blocks, selection, attention
// over the selected blocks.
//
//   sums  = xattn_scores(q, k),  lists = xattn_select(sums, tau),
//   out   = block_sparse_attention(q, k, v, lists)
//
// Heads are processed in as many rounds as workspace_limit allows; that changes no bit. Nor does
// the way a prompt is cut into calls, where calls start at multiples of `block` and prompt_lengths
// says how long the prompt is: a query block's list depends on its own queries and the keys before
// them only.
//
// Dense (every visible block, nothing is scored where the host can tell): layers that the caller
// marks, calls whose longest sequence is below min_length. Dense rows in a sparse call: prompts
// below min_length and the last dense_tail tokens of a prompt (xattn_select.h). The default of
// min_length is the break-even on an H200 (32 and 8 heads of 128, S 16): 2048 tokens win by
// 7 % at most and lose above density 0.35, 4096 won at every density measured, up to 0.54.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4 {

struct XattnPrefillArgs {
  PrefillBatch batch;
  ConstTensorView q;           // [t_q, h_q, d] f32|bf16|f16
  ConstTensorView k;           // [t_kv, h_kv, d], or with page_table [pages, page_size, h_kv, d]
  ConstTensorView v;           // [t_kv, h_kv, d_v], or [pages, page_size, h_kv, d_v]
  ConstTensorView page_table;  // [b, n] I32, or empty
  int64_t max_queries = 0, max_keys = 0;  // of any sequence, at least; known to the host
  int64_t block = 128, stride = 16;
  ConstTensorView tau;                        // [h_q] f32
  bool dense = false;                         // this layer is not to be approximated
  ConstTensorView prompt_lengths;             // [b] I32 tokens of the whole prompt; empty: the keys
  int64_t min_length = 4096, dense_tail = 0;  // tokens
  int64_t workspace_limit = int64_t{1} << 30;  // bytes of scores and lists; at least one group
  float scale = 0.f;
  float norm = 1.f;  // temperature of the scores, which use scale / norm
  TensorView out;    // [t_q, h_q, d_v], dtype of q
  TensorView lse;    // [h_q, t_q] f32; or empty
};

extern const Op<XattnPrefillArgs> xattn_prefill;

}  // namespace dsv4
