// The compressed entries that a query attends to: the k highest indexer scores of each query, as
// cache rows (docs/spec/dsv4.md 6; formulas and rounding points: ops/parts/indexer/indexer.h).
//
//   score[t, s] = sum_h relu(q[t, h] . key[s]) * (weight[t, h] * weight_scale),  s < visible[t]
//   indices[t]  = rows of the k entries with the highest scores, ties to the lowest s; their s
//                 ascending, then -1
//
// The scores are stored in f32 and leave no trace outside of the op.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct IndexSelectArgs {
  ConstTensorView q;         // [t, h, d] f32|bf16, after RoPE, Hadamard and S4
  ConstTensorView weights;   // [t, h] f32|bf16
  float weight_scale = 1.f;  // d^-1/2 h^-1/2 in the model
  IndexPool keys;
  ConstTensorView pages;     // [b, max_pages] I32: page of entry s is pages[seq, s / page_entries]
  ConstTensorView sequence;  // [t] I32: row of `pages` of each token
  ConstTensorView visible;   // [t] I32: entries 0 .. visible-1 are visible
  int64_t max_visible = 0;   // visible[t] at most
  TensorView indices;        // [t, k] I32 rows of the pools that share these pages; -1 padded
  // [t] I32, or empty: the keys of entries 0 .. settled-1 of the token's sequence, and pages,
  // sequence, visible and this list, were complete before the previous kernel of the stream was
  // launched, and so may be read by a kernel that is launched early (LaunchShape::pdl) before it
  // waits. No value changes the result.
  ConstTensorView settled{};
};

extern const Op<IndexSelectArgs> index_select;

}  // namespace dsv4
