// A ring of buffers in shared memory that a producer fills and consumers read. Each buffer, a
// stage, has two mbarriers: `full` (its bytes have landed) and `empty` (all readers have read it).
// A stage is used again after as many uses as the ring has stages, and the phase (parity) of its
// barriers flips each time.
//
// A consumer waits for `phase`, which starts at 0. A producer waits for the other phase, for which
// a wait on a fresh "empty" barrier returns at once.

#pragma once

#include <cstdint>

namespace dsv4::sm90 {

// The position in a ring, one use after the other. The number of stages may be known at run time
// only.
struct RingCursor {
  int stage = 0, phase = 0;

  __device__ void next(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

// The position in a ring of kStages, for kernels that look ahead.
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
