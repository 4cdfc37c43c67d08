// The feed-forward block of one layer: assembles the arguments of moe (docs/spec/dsv4.md 7).

#pragma once

#include "dsv4/model/step.h"
#include "dsv4/model/weights.h"

namespace dsv4 {

// Computes the boundary before the block, then the block from its x; acc: [T, D] f32.
void run_moe(const Step& step, const MoeWeights& weights, const HcBoundaryArgs& boundary,
             const TensorView& acc);

}  // namespace dsv4
