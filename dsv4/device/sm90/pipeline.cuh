// Position in a ring of kStages buffers that mbarriers guard: stage i is used again every kStages
// uses, and the phase (parity) of its barriers flips each time.
//
// A consumer waits for `phase`, starting at 0. A producer starts at 1, which
// fresh "empty" barriers pass.

#pragma once

#include <cstdint>

namespace dsv4::sm90 {

template <int kStages>
struct PipelineState {
  int stage = 0, phase = 0;

  // Of a consumer's use number `use`.
  __device__ static PipelineState of_use(uint32_t use) {
    return {.stage = static_cast<int>(use % kStages), .phase = static_cast<int>(use / kStages % 2)};
  }

  // `ahead` uses from here, 0 <= ahead <= kStages.
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
