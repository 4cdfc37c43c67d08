// What each rank of a divided model takes, computed by the code that loads and allocates: its
// tensors are laid out as on a device, its step is run dry. A drafter is one of its blocks.

#pragma once

#include <vector>

#include "dsv4/plan/plan.h"

namespace dsv4 {

struct RankPlan {
  ShardId id;
  // The block that holds its tensors, each at a multiple of 256 bytes (engine/device_weights.h).
  int64_t weights_bytes = 0;
  int64_t own_bytes = 0;      // of these tensors: rows and experts that no other rank has
  int64_t cache_bytes = 0;    // all of it: every rank has the whole cache
  int64_t scratch_bytes = 0;  // lists and temporaries of a step, as a rank on the CPU reserves them
  int64_t guesses_bytes = 0;  // with a drafter: DraftBuffers, equal on all ranks
  // With MTP, on a GPU: its rows of the copy of the head that guesses read (--draft-head).
  int64_t draft_head_bytes = 0;
  // Values that it receives for each token of a decode step from the others, without logits; rows
  // of whole experts as if all were chosen equally often.
  int64_t received_bytes_per_token = 0;
  // And for each token of a prompt so long that the indexer chooses, in steps of 4,096 tokens:
  // with the picks for others' tokens.
  int64_t received_bytes_per_prompt_token = 0;
};

// Throws what plan_memory() does, and kUnsupported naming a weight that cannot be divided.
std::vector<RankPlan> plan_ranks(const ModelConfig& config, const ConvertList& weights,
                                 const PlanRequest& request, int world);

}  // namespace dsv4
