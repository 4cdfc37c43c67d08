// The second part of moe.h, from the hidden values that ranks have exchanged (moe_hidden.h) to the
// rows of acc that a rank computes.
//
//   acc = sum over experts, ascending id, of w2 h      rounding points: ops/parts/experts/experts.h
//   acc = acc + w2 h of the shared expert

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct MoeOutputArgs {
  ConstTensorView hidden;         // [t * k, I] f32|bf16, in the order of the experts
  ConstTensorView shared_hidden;  // [t, S] f32|bf16
  ConstTensorView chosen;         // [t, k] I32, of the first part
  ConstTensorView logits;   // [t, e] f32, of the first part: an implementation may route again
  ConstTensorView ids;      // [t] I32 token ids, used with tid2eid
  ConstTensorView bias;     // [e] f32; empty: no bias
  ConstTensorView tid2eid;  // [v, k] I64|I32; empty: learned routing
  ExpertStack routed;       // all e experts, of which w2 is read: [n, I]
  ExpertStack shared;       // one expert: [n, S]
  TensorView acc;           // [t, n] f32, overwritten
  FirstHalf first{};        // of the first part
  Mirrors mirrors{};        // of acc
};

extern const Op<MoeOutputArgs> moe_output;

// moe_output.cost() counts different experts for all tokens; this expects them to be chosen at
// random.
Cost expected_cost(const MoeOutputArgs& args);

}  // namespace dsv4
