// Lightning indexer: selects the compressed entries that a query attends to (docs/spec/dsv4.md 6).
//
//   score[t, s] = sum_h relu(q[t, h] . key[s]) * (weight[t, h] * weight_scale)
//                                                                  s < visible[t], otherwise -inf
//   top_k:        the k highest scores of each t, ties to the lowest s; their s ascending, then -1
//
// kOfficial rounds the scaled weight, the dot product, their product and the final sum to bf16 and
// adds heads in f32, ascending h; kExact keeps f32.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct IndexScoresArgs {
  ConstTensorView q;         // [t, h, d] f32|bf16, after RoPE, Hadamard and S4
  ConstTensorView weights;   // [t, h] f32|bf16
  float weight_scale = 1.f;  // d^-1/2 h^-1/2 in the model
  IndexPool keys;
  ConstTensorView
      pages;  // [b, max_pages] I32: page of logical entry s is pages[seq, s / page_entries]
  ConstTensorView sequence;  // [t] I32: row of `pages` of each token
  ConstTensorView visible;   // [t] I32: entries 0 .. visible-1 are visible
  TensorView scores;         // [t, n] f32, n >= max(visible); -inf from visible[t] on
};

struct TopKArgs {
  // [t, n] f32; -inf is never chosen. A NaN among the visible scores throws NotFinite on the CPU;
  // on a device, which cannot throw, the choice is then undefined.
  ConstTensorView scores;
  ConstTensorView visible;   // [t] I32, <= n
  ConstTensorView pages;     // [b, max_pages] I32 as above; empty: no translation
  ConstTensorView sequence;  // [t] I32, with pages
  int page_entries = 0;      // with pages
  TensorView indices;        // [t, k] I32: selected entries, ascending, padded with -1; with
                             // `pages`, the cache row of each
};

extern const Op<IndexScoresArgs> index_scores;

extern const Op<TopKArgs> top_k;

}  // namespace dsv4
