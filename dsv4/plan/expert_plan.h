// The memory plan of a model whose routed experts do not all fit in a GPU: how many it holds, and
// what host memory has to hold (docs/experts-in-host-memory.md).
//
//   room for experts = room of the GPU - dense weights - cache
//   places           = those of engine/expert_places.h in this room, or in --experts-memory
//   resident         = experts in fixed places and slots; transient places hold none for long
//   host memory      = a copy of every expert that is not fixed
//
// Experts count with the bytes of their kernel images, layer by layer, as in the engine. What is
// free when a program starts is not known here: the reserve of the machine stands for the rest.

#pragma once

#include <optional>

#include "dsv4/engine/expert_places.h"
#include "dsv4/plan/plan.h"

namespace dsv4 {

// What a decode step's fetch kernels bring over a PCIe 5 link (docs/experts-in-host-memory.md).
inline constexpr double kLinkBytesPerSecond = 49e9;

struct ExpertRequest {
  std::optional<int64_t> gpu_bytes;  // for experts; none: all that there is room for
  int64_t host_bytes = 0;            // of host memory, for experts
};

struct ExpertFit {
  ExpertPlaces places;
  int64_t gpu_room = 0, host_room = 0;  // bytes of either memory, without what is kept free
  int64_t dense_bytes = 0;              // of the GPU, for dense weights and the cache
  int64_t chosen = 0;                   // experts of a token, in a layer

  int64_t all_bytes() const;    // of all experts
  int64_t token_bytes() const;  // of those that a token chooses in all layers
  int64_t fixed() const { return places.all() - places.homes(); }
  int64_t gpu_need() const { return dense_bytes + places.gpu_bytes(); }
  double share() const {
    return static_cast<double>(places.resident()) / static_cast<double>(places.all());
  }
  // What of token_bytes() comes over the link if all experts are equally likely: a layer finds its
  // kept ones. Transient places are empty when a step looks its experts up (decide.h).
  double link_bytes() const;
  double link_seconds() const { return link_bytes() / kLinkBytesPerSecond; }
};

// machine: one GPU. Throws kUnsupported for experts without images, kResource when the rest of the
// model leaves no room, when the GPU has less than request.gpu_bytes, or when host memory does not
// hold what the GPU does not.
ExpertFit fit_experts(const MemoryPlan& plan, const Machine& machine, const ExpertRequest& request);

}  // namespace dsv4
