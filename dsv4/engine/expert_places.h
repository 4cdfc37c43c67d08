// How many experts of each layer a device holds when not all of them fit, and how many copies host
// memory has (docs/experts-in-host-memory.md). Arithmetic on sizes: the plan and the engine share
// it, and nothing is allocated here.
//
//   fixed      experts of a layer that have no copy in host memory: none where that holds them all
//   slots      the other places of the layer
//   transient  2 x half places that all layers share. A prompt's step streams a layer through one
//              half while the other is read; a decode step uses them for misses that get no slot
//   half       the experts of a layer that have no place, up to kTransientShare of what fits
//
// All layers have the same number of places, but for a remainder that goes to the first ones.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4 {

inline constexpr int64_t kPlaceAlign = 256;
inline constexpr int64_t kTransientShare = 32;  // one in so many places, of each half
inline constexpr int64_t kLeastHalf = 8;        // where the layers have so many experts outside

struct ExpertPlaces {
  int64_t experts = 0;                // of a layer
  std::vector<int64_t> place_bytes;   // [layers]: gate_up and down image of one, aligned
  std::vector<int64_t> fixed, slots;  // [layers]
  int64_t half = 0;
  // Not 0, in a benchmark: copies beyond so many bytes of host memory share those of other experts,
  // so that steps take their time with the bytes of the wrong ones.
  int64_t shared_host_bytes = 0;

  int64_t layers() const { return static_cast<int64_t>(place_bytes.size()); }
  int64_t transient() const { return 2 * half; }
  int64_t transient_bytes() const;  // of a transient place: the largest of all layers
  int64_t kept(int64_t layer) const {
    return fixed[static_cast<size_t>(layer)] + slots[static_cast<size_t>(layer)];
  }
  int64_t resident() const;  // experts, of all layers
  int64_t homes() const;     // experts with a copy in host memory, of all layers
  int64_t all() const { return experts * layers(); }
  bool complete() const { return resident() == all(); }  // then there is no copy and no transient
  int64_t gpu_bytes() const;
  int64_t host_bytes() const;
};

// gpu_bytes: for places of all kinds; host_bytes: for copies. Throws kResource, naming both sizes,
// when the GPU does not hold a place in every layer beside the transient ones, and when an expert
// fits neither memory.
ExpertPlaces plan_places(std::vector<int64_t> image_bytes, int64_t num_experts, int64_t gpu_bytes,
                         int64_t host_bytes);

}  // namespace dsv4
