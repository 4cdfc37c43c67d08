// Position in a ring of kStages buffers that mbarriers guard: a stage is used again after kStages
// uses, and the phase (parity) of its barriers flips each time.
//
// A consumer waits for `phase`, which starts at 0. A producer starts at 1,
// for which a wait on a fresh "empty" barrier returns at once.

#pragma once

#include <cstdint>

namespace dsv4::sm90 {

template <int kStages>
struct PipelineState {
  int stage = 0, phase = 0;

  // The position of a consumer at its use number `use`, counted from 0.
  __device__ static PipelineState of_use(uint32_t use) {
    return {.stage = static_cast<int>(use % kStages), .phase = static_cast<int>(use / kStages % 2)};
  }

  // The position `ahead` uses later, 0 <= ahead <= kStages.
  __device__ int stage_at(int ahead) const { return stage + ahead - (wraps(ahead) ? kStages : 0); }
  __device__ int phase_at(int ahead) const { return phase ^ (wraps(ahead) ? 1 : 0); }
  __device__ void advance(int uses) {
    phase ^= wraps(uses) ? 1 : 0;
    stage = stage_at(uses);
  }

 private:
  __device__ bool wraps(int ahead) const { return stage + ahead >= kStages; }
};

}  // namespace dsv4::sm90
