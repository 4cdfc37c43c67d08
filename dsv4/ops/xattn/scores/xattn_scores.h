// Antidiagonal block scores (XAttention, arXiv 2503.16428): an estimate of how much attention every
// query block pays to every key block, at 1 / stride of the cost of Q K^T.
//
// Positions of queries and keys (prefill_batch.h) fall into groups of S = stride. With q and k zero
// where a sequence has no query or key:
//
//   score[r, c] = sum_{s < S} q[r S + (S - 1 - s)] . k[c S + s]      one antidiagonal of an SxS
//   tile p[r, c]     = softmax over c of scale / S * score[r, c] sums[I, J]  = sum of p[r, c] over
//   the groups r of query block I and the groups c of key block J
//
// r runs over the groups with a query; c over the groups with a key, up to c = r when causal: the
// diagonal tile counts as a whole. A query block thus has as much mass as it has groups that see a
// key: block / S at most. Nothing is rounded between the f32 steps; upstream rounds scores and sums
// to bf16 (docs/spec/xattention.md 2.2: 4e-3 of difference).
//
// Groups and blocks are aligned to positions, so sums of whole blocks do not depend on how a prompt
// is chunked. Source: docs/spec/xattention.md 1.2, 1.3, 1.4; differences from upstream: 2.3.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/xattn/attention/prefill_batch.h"

namespace dsv4 {

struct XattnScoresArgs {
  PrefillBatch batch;
  ConstTensorView q;           // [t_q, h_q, d] f32|bf16|f16
  ConstTensorView k;           // [t_kv, h_kv, d], or with page_table [pages, page_size, h_kv, d]
  ConstTensorView page_table;  // [b, n] I32: pages of a sequence in order; empty: no pages
  int64_t block = 128;         // positions of a block: 64 or 128
  int64_t stride = 8;          // S: a power of two, at most block
  float scale = 0.f;           // > 0; usually 1 / sqrt(d)
  // [b, h_q, q_blocks, k_blocks] f32, contiguous, with room for the blocks of every sequence
  // (device implementations cannot check that); every element is written, 0 where a block is not
  // visible or no sequence has such a block.
  TensorView sums;
};

extern const Op<XattnScoresArgs> xattn_scores;

}  // namespace dsv4
