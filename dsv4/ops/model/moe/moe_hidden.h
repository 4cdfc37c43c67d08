// The first part of moe.h, up to what ranks exchange (docs/spec/several-gpus.md 2.3): gate, router,
// and the hidden values of the routed experts and of the shared one, of which a rank has some rows,
// or of some experts.
//
//   chosen, weights = router(x gate^T)                             the same on all ranks
//   hidden          = experts_hidden(routed, chosen, weights)      ops/parts/experts/halves.h
//   shared_hidden   = experts_hidden(shared)                       weight 1
//
// The second part is moe_output.h.

#pragma once

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/experts/halves.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct MoeHiddenArgs {
  ConstTensorView x;        // [t, D] f32|bf16
  HcBoundaryArgs boundary;  // if given, it is computed first, and x is its x
  ConstTensorView ids;      // [t] I32 token ids, used with tid2eid
  WeightView gate;          // [e, D]
  ConstTensorView bias;     // [e] f32; empty: no bias
  ConstTensorView tid2eid;  // [v, k] I64|I32; empty: learned routing
  ExpertStack routed;       // of e experts, of which w1 and w3 are read: [i, D]
  ExpertStack shared;       // one expert: [s, D]
  float route_scale = 1.f;
  bool normalize = true;  // norm_topk_prob
  float swiglu_limit = 0.f;
  TensorView logits;           // [t, e] f32: x gate^T; for the second part, as all that follow
  TensorView chosen;           // [t, k] I32
  TensorView hidden;           // [t * k, i] f32|bf16, in the order of the experts; i may be 0.
                               // Rows of experts that are not in `routed` hold anything afterwards
  TensorView shared_hidden;    // [t, s] f32|bf16; s may be 0
  Mirrors mirrors{};           // of hidden and of shared_hidden
  FirstHalf* first = nullptr;  // of the routed experts: written, if not null
};

extern const Op<MoeHiddenArgs> moe_hidden;

// The weights of the choices [t, k] in the dtype and shape that they will have, without memory.
TensorView weights_to_come(const ConstTensorView& chosen);

// For sm90_fused: the first launch of sm90_few, which computes the boundary, if there is one,
// logits and shared_hidden.
namespace moe_hidden_kernel::sm90_few {
const char* reject(const Context& context, const MoeHiddenArgs& args);
void run_inputs(const Context& context, const MoeHiddenArgs& args);
}  // namespace moe_hidden_kernel::sm90_few

// moe_hidden.cost() counts different experts for all tokens; this expects them to be chosen at
// random.
Cost expected_cost(const MoeHiddenArgs& args);

}  // namespace dsv4
