// Memory of a forward step beside weights and cache, found by dry runs of Model::forward()
// (model/dry_run.h). The executor reserves it when it is made, `dsv4 plan` prints it.

#pragma once

#include "dsv4/comm/symmetric_memory.h"
#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/sample_lists.h"
#include "dsv4/model/model.h"

namespace dsv4 {

// Each is the maximum over all steps that the limits allow; they may be reached by different steps.
struct Workspace {
  int64_t lists = 0;        // of make_step(); on a device as much again is page-locked host memory
  int64_t activations = 0;  // taken from the step's scratch
  int64_t step = 0;         // both: one scratch holds them on the host, two on a device
  int64_t logits = 0;       // [rows, V] f32
  // What implementations take for a call: on the host from the system (an upper bound), on a device
  // from its workspace.
  int64_t kernels = 0;
  // The sampler's lists (sample_lists.h); on a device as much again is page-locked host memory.
  int64_t sampling = 0;
  int64_t drafter = 0;  // DraftBuffers and DraftHead
  // What ranks on GPUs take of memory that all of them write (comm/symmetric_memory.h).
  SymmetricBytes symmetric{};
  int64_t total() const {
    return step + logits + kernels + sampling + drafter + symmetric[0] + symmetric[1];
  }
};

// Where the lists of the sampler are, and their bounds.
SampleLayout sample_layout(const ModelConfig& config, const CacheLimits& limits);

// context.device: null for the host; otherwise its kernels are chosen for that device, of which
// only info() is used, so that a dry run serves (Device::dry_run). threads: of the host
Workspace plan_workspace(const Model& model, const Context& context, const CacheLimits& limits,
                         int threads);

}  // namespace dsv4
