// The feed-forward block: gate, router, routed experts, shared expert (docs/spec/dsv4.md 7).
//
//   logits = x gate^T                            f32 product of the stored x, not quantized
//   experts, weights = router(logits)            ops/parts/router/router.h
//   acc = sum over experts, ascending id         rounding points: ops/parts/experts/experts.h
//   acc = acc + shared expert, weight 1
//
// acc stays in f32: its rounding belongs to what reads it (hc_boundary, hc_post).

#pragma once

#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/op.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct ExpertsFetchArgs;  // ops/parts/experts_fetch/experts_fetch.h

struct MoeArgs {
  ConstTensorView x;        // [t, D] f32|bf16
  HcBoundaryArgs boundary;  // if given, it is computed first, and x is its x; acc may have the
                            // memory of its y
  ConstTensorView ids;      // [t] I32 token ids, used with tid2eid
  WeightView gate;          // [e, D]
  ConstTensorView bias;     // [e] f32; empty: no bias
  ConstTensorView tid2eid;  // [v, k] I64|I32; empty: learned routing
  ExpertStack routed;       // e experts of equal shape
  ExpertStack shared;       // one expert
  int64_t experts_per_token = 0;  // k
  float route_scale = 1.f;
  bool normalize = true;  // norm_topk_prob
  float swiglu_limit = 0.f;
  TensorView acc;  // [t, D] f32
  // Where routed has places (ExpertImages::places): brings the chosen experts there before they are
  // read. Its `experts` are the call's. Null: nothing is brought.
  const ExpertsFetchArgs* fetch = nullptr;
};

// For implementations, between the router and the experts. chosen: [t, k] I32
void fetch_chosen(const Context& context, const ExpertsFetchArgs* fetch,
                  const ConstTensorView& chosen);

extern const Op<MoeArgs> moe;

// moe.cost() counts different experts for all tokens; this expects them to be chosen at random, as
// expected_cost() of experts.h.
Cost expected_cost(const MoeArgs& args);

}  // namespace dsv4
