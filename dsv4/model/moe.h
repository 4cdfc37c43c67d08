// The feed-forward block of one layer: router, routed experts, shared expert (docs/spec/dsv4.md 7).

#pragma once

#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// x: [T, D] after ffn_norm -> [T, D] f32, in scratch: the sum over experts in ascending id, the
// shared one last.
TensorView moe(Step& step, const MoeWeights& weights, const ConstTensorView& x);

}  // namespace dsv4
