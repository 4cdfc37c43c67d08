// MoE router: scores, selection, weights (docs/spec/dsv4.md 7.1).
//
//   s = sqrt(softplus(logits));  softplus(v) = ln(1 + e^v), v itself for v > 20
//   learned: experts = top-k of s + bias, ties to the lowest expert id
//   hash:    experts = tid2eid[ids[t]]
//   weight_i = s_i / sum_j s_j * route_scale, always with the unbiased s
//
// Learned routing by NaN throws NotFinite on the CPU; on a device, which cannot throw, the choice
// is then undefined.
//
// The experts of a token are written in the order of selection (highest key first), or in table
// order.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct RouterArgs {
  ConstTensorView logits;   // [t, e] f32
  ConstTensorView bias;     // [e] f32; empty: no bias
  ConstTensorView tid2eid;  // [v, k] I64|I32 with values in [0, e); empty: learned routing
  ConstTensorView ids;      // [t] I32, used with tid2eid
  float route_scale = 1.f;
  bool normalize = true;  // norm_topk_prob
  TensorView experts;     // [t, k] I32
  TensorView weights;     // [t, k] f32
};

extern const Op<RouterArgs> router;

}  // namespace dsv4
