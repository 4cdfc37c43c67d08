// Selection of key blocks from block scores (XAttention). For every query block of a head, over the
// n key blocks that it sees (prefill_batch.h), with scores v_J >= 0:
//
//   u_J  = floor(2^40 v_J), an integer; need = tau * sum_J u_J
//   keep   block 0 if `sink`, and the diagonal block if causal
//   take   the others, larger score first and of equal scores the lower block first, while the sum
//          of u_J over kept and taken blocks is below need
//
// which is the smallest set of the largest blocks that holds the share tau of the mass. Integer
// sums do not depend on their order, so every implementation gives the same lists. NaN and negative
// scores count as 0, scores above 4096 as 4096 (the scores of xattn_scores are at most `block`).
//
// top_k > 0 takes blocks until there are top_k instead. Then at least min_blocks and at most
// max_blocks are listed; kept blocks always are. Rows of prompts below min_length, and rows with a
// query among the last dense_tail tokens of the prompt, list every block they see.
//
// Source: docs/spec/xattention.md 1.5, the rule of every chunk but the first, for all rows; ties
// and the first chunk's additional block (1.7, 1) are where upstream differs.

#pragma once

#include <limits>

#include "dsv4/ops/op.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

namespace dsv4 {

struct XattnSelectArgs {
  PrefillBatch batch;
  int64_t block = 128;   // positions of a block
  ConstTensorView sums;  // [b, h, q_blocks, k_blocks] f32, contiguous
  ConstTensorView tau;   // [h] f32, a share of the mass; or empty with top_k
  int64_t top_k = 0;     // blocks of a row; 0: tau decides
  int64_t min_blocks = 0, max_blocks = std::numeric_limits<int32_t>::max();
  bool sink = true;
  ConstTensorView prompt_lengths;          // [b] I32 tokens of the whole prompt; empty: the keys
  int64_t min_length = 0, dense_tail = 0;  // tokens
  // Contiguous, as block_sparse_attention reads them; slots past the count are -1, counts of rows
  // past a sequence's query blocks 0.
  BlockLists<TensorView> lists;
};

extern const Op<XattnSelectArgs> xattn_select;

}  // namespace dsv4
