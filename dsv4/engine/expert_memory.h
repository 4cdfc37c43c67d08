// What a model may take of both memories when its routed experts do not all go to the device, and
// what comes of it (docs/experts-in-host-memory.md).
//
//   room for experts = what is free, or the cap - dense weights - cache - workspace
//   host memory      = what is available - what else the program takes there - host_spare_bytes()
//
// Larger sizes are refused. Where none is given, experts get all of it, but kSpareBytes of the GPU.

#pragma once

#include <optional>
#include <string>

#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/expert_store.h"

namespace dsv4 {

// For captured graphs, libraries and gaps between allocations.
inline constexpr int64_t kSpareBytes = int64_t{1} << 30;
// For everything else that runs, and for the tables by which the system and the driver know locked
// pages: a machine with 125 GiB ended a program that had locked all but 1 GiB of what was there.
constexpr int64_t host_spare_bytes(int64_t available_bytes) {
  return (int64_t{2} << 30) + available_bytes / 32;
}

struct ExpertMemory {
  std::optional<int64_t> gpu_bytes;   // for experts; none: all that there is room for
  std::optional<int64_t> cap_bytes;   // of the GPU, for everything; none: what is free
  std::optional<int64_t> host_bytes;  // for experts; none: what is available
  int64_t other_host_bytes = 0;       // that this program takes later
  bool share_copies = false;          // ExpertPlaces::shared_host_bytes
  CacheLimits limits;                 // of the engine that will run
  ExpertOrder order;                  // which experts begin in GPU memory
};

// Bytes of the device, beside experts.
struct DenseBytes {
  int64_t weights = 0, cache = 0, workspace = 0;
  int64_t sum() const { return weights + cache + workspace; }
};

// Throws kResource, naming the sizes in one line, when one of the memories is too small.
// free_bytes: of the device; available_bytes: of the host
ExpertPlaces plan_expert_memory(const ExpertMemory& memory, const DenseBytes& dense,
                                std::vector<int64_t> image_bytes, int64_t num_experts,
                                int64_t free_bytes, int64_t available_bytes);

// For a model on the CPU: throws kUnsupported.
[[noreturn]] void refuse_expert_memory(const std::string& why);

}  // namespace dsv4
