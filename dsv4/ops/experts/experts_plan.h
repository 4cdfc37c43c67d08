// Which (token, slot) pairs belong to which expert, worked out on the device.
//
// Pairs are in order of expert, then token, then slot, so that nothing depends on scheduling. Tiles
// are at most tile_pairs pairs of one expert; how many there are is known on the device only.

#pragma once

#include "dsv4/ops/experts/experts.h"
#include "dsv4/ops/linear/product_cuda.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {

// The second factors of the weights (WeightView::scale2), which differ from expert to expert.
inline constexpr int kMaxExperts = 384;
struct Scale2s {
  float w1[kMaxExperts], w3[kMaxExperts], w2[kMaxExperts];
};

// On the device. `token` and `share` are null for the shared expert, whose pairs are the tokens.
struct ExpertPlan {
  int32_t* token = nullptr;    // [pairs]
  float* share = nullptr;      // [pairs] weights of the pairs
  int32_t* pair_of = nullptr;  // [t, k] where a token's slots went
  int32_t* first = nullptr;    // [e + 1] first pair of an expert
  ProductTile* tiles = nullptr;
  int32_t* num_tiles = nullptr;
  float *scale2_w1 = nullptr, *scale2_w3 = nullptr, *scale2_w2 = nullptr;  // [e]
  int64_t max_tiles = 0;
};

// Taken from the workspace: lives as long as the caller's scope.
ExpertPlan make_expert_plan(Device& device, const ExpertsArgs& args, int tile_pairs,
                            const Scale2s& scale2s);

}  // namespace dsv4
