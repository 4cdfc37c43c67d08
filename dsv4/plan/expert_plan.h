// The memory plan of a model whose routed experts do not all fit in a GPU: how many it holds, and
// what host memory has to hold (docs/experts-in-host-memory.md).
//
//   room for experts = room of the GPU - dense weights - cache
//   places           = those of engine/expert_places.h in this room, or in --experts-memory
//   resident         = experts in fixed places and slots; transient places hold none for long
//   host memory      = a copy of every expert that is not fixed
//
// Experts count with their stored bytes, on average where layers differ; kernel images of the
// released models take the same.

#pragma once

#include <optional>

#include "dsv4/plan/plan.h"

namespace dsv4 {

struct ExpertRequest {
  std::optional<int64_t> gpu_bytes;  // for experts; none: all that there is room for
  int64_t host_bytes = 0;            // of host memory, for experts
};

struct ExpertFit {
  int64_t experts = 0, expert_bytes = 0;  // of all layers; of one expert
  int64_t resident = 0, fixed = 0;        // experts
  int64_t transient = 0;                  // places
  int64_t room_bytes = 0;                 // of the GPU, for places
  int64_t gpu_bytes() const { return (resident + transient) * expert_bytes; }
  int64_t host_bytes() const { return (experts - fixed) * expert_bytes; }
  double share() const { return static_cast<double>(resident) / static_cast<double>(experts); }
  int64_t token_bytes = 0;  // of the experts that a token chooses in all layers
  // What of it comes over the link if all experts are equally likely.
  double link_bytes() const { return (1 - share()) * static_cast<double>(token_bytes); }
};

// machine: one GPU. Throws kBadInput when the rest of the model leaves no room, when the GPU has
// less than request.gpu_bytes, or when host memory does not hold what the GPU does not.
ExpertFit fit_experts(const MemoryPlan& plan, const Machine& machine, const ExpertRequest& request);

}  // namespace dsv4
