// The memory plan: what a model takes, before it is loaded, and which machines hold it.
//
//   need = weights + cache(context, sequences) + workspace
//   cache = sequences x (window pages + compressor states + entry pages of the context)
//           + window pages of a step's tokens
//
// Weights come from tensor shapes (a checkpoint's, or the list of an official one, after a
// recipe), cache and workspace from the functions that the engine allocates from (cache_plan.h,
// workspace.h); a build without CUDA plans the kernels of a GPU as those of the host. Several
// devices share a model as docs/spec/several-gpus.md 2 has it: a weight is cut by rows or whole
// on each, and every device has the whole cache. Need and room are those of one device, the one
// with the largest shares. Windows of the exchanges are part of the reserve. Source of the
// method: docs/memory.md.

#pragma once

#include <map>
#include <memory>
#include <vector>

#include "dsv4/engine/workspace.h"
#include "dsv4/plan/machine.h"
#include "dsv4/plan/weight_summary.h"

namespace dsv4 {

struct PlanRequest {
  Numerics numerics = Numerics::kOfficial;
  int64_t context = 0;  // tokens of a sequence
  int sequences = 1;
  int64_t batch_tokens = 512;  // of one step; at least one a sequence
  int threads = 1;             // of the CPU rows
  bool drafter = false;        // the config's runs too, and its tensors are among the weights
  ExpertsPlacement placement = ExpertsPlacement::kSliced;  // on several devices
};

// The limits of an engine that serves it.
CacheLimits cache_limits(const ModelConfig& config, const PlanRequest& request);

struct MemoryPlan {
  // Weights of the largest of so many ranks.
  int64_t rank_weights(int devices) const;

  ModelConfig config;
  std::shared_ptr<const Model> shapes;  // for dry runs of a step: no memory, a layer of each kind
  PlanRequest request;
  WeightSummary weights;
  // [layer] of one routed expert: its codes and block scales, which are all that kernel images
  // hold; 0 in a layer that has others than MXFP4, NVFP4 and k-bit ones.
  std::vector<int64_t> expert_bytes;
  std::map<int64_t, int64_t>
      cut_bytes;  // of the weights that ranks share, by their number of units
  KvRate kv_rate;
  SequenceBytes sequence;
  int64_t cache_bytes = 0;  // what the engine allocates for the request
  // The copy of the head that guesses of MTP read on a GPU, a part of its workspace; 0: none.
  int64_t draft_head_bytes = 0;
  Workspace workspace;
  int64_t checkpoint_bytes = 0;
};

// Throws kBadInput when the context exceeds the model's positions or the list lacks a weight of the
// model, kUnsupported when the numerics do not fit the config.
MemoryPlan plan_memory(const ModelConfig& config, const ConvertList& weights,
                       const PlanRequest& request);

struct Fit {
  bool fits = false;           // the request
  int64_t room_bytes = 0;      // of a device, without what is kept free
  int64_t need_bytes = 0;      // of the request on a device, beside what is kept free
  int64_t max_context = 0;     // tokens of one sequence alone; 0: not even one
  int64_t max_sequences = 0;   // of the asked context
  bool all_positions = false;  // max_context is the model's limit, not the machine's
};

// On a GPU the workspace lives in the reserve, which grows where it does not suffice.
Fit fit(const MemoryPlan& plan, const Machine& machine);

}  // namespace dsv4
