// Memory of a step beside weights and cache: the executor reserves scratch and logits from this
// plan when it is made, `dsv4 plan` prints it.

#pragma once

#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/scratch_plan.h"

namespace dsv4 {

struct Workspace {
  ScratchPlan scratch;  // lists and temporaries of the forward step
  int64_t logits = 0;   // [rows, V] f32
  // Upper bound of what the CPU rows take from the system inside a call, by `threads` threads:
  // packed activations of a product, the pairs of an expert wave, decoded keys of a query.
  int64_t kernels = 0;
  int64_t total() const { return scratch.together + logits + kernels; }
};

Workspace plan_workspace(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
                         int threads);

}  // namespace dsv4
