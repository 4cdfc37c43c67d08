// Sorts token-expert pairs by expert, on the device.
//
// A pair is one slot of a token: one of the experts that the token chose. Pairs are ordered by
// expert, then token, then slot, so the order does not depend on scheduling. A tile is at most
// tile_m pairs of one expert; the number of tiles is known on the device only. Of a stack that is
// part of a layer, pairs of other experts have their places in the order and nothing else.

#pragma once

#include "dsv4/ops/gemm/cuda/problem.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {

inline constexpr int64_t kMaxPlanned = 1024;  // experts

// The second factors of the weights (WeightView::scale2), which differ between experts. A kernel
// argument: 12 KB.
struct Scale2s {
  float w1[kMaxPlanned], w3[kMaxPlanned], w2[kMaxPlanned];
};

// Pointers to device memory. All are null for the shared expert, whose pairs are the tokens.
struct ExpertPlan {
  int32_t* token = nullptr;    // [pairs]
  float* weight = nullptr;     // [pairs] router weight
  int32_t* pair_of = nullptr;  // [t, k] the pair of each slot of a token
  int32_t* first = nullptr;    // [e + 1] first pair of each expert
  gemm::cuda::RowTile* tiles = nullptr;
  int32_t* num_tiles = nullptr;
  float *scale2_w1 = nullptr, *scale2_w3 = nullptr, *scale2_w2 = nullptr;  // [e]
  int64_t max_tiles = 0;
};

// The plan is taken from the workspace and lives as long as the caller's scope.
ExpertPlan make_expert_plan(Device& device, const ExpertsArgs& args, int tile_m,
                            const Scale2s& scale2s);

}  // namespace dsv4
