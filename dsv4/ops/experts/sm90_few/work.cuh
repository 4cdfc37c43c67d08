// The stages of a CTA: CTA b of n takes stages [b W / n, (b + 1) W / n) of all W stages of all
// entries, in order of entry, so its warps load activations once or twice.

#pragma once

#include "dsv4/ops/experts/sm90_few/config.cuh"

namespace dsv4::experts_few {

struct Work {
  int entry, stage;  // the current stage of the current entry
  int left;          // stages of this CTA, with this one
  int done = 0;      // stages of this CTA before this one
  int stages;        // of an entry

  // Reads the number of entries: call after griddepcontrol_wait().
  __device__ explicit Work(const Params& p) : stages(p.stages) {
    const int64_t all = int64_t{*p.num_entries} * p.stages;
    const int64_t first = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
    entry = static_cast<int>(first / stages);
    stage = static_cast<int>(first % stages);
    left = static_cast<int>(end - first);
  }
  __device__ bool more() const { return left > 0; }
  __device__ void next() {
    --left, ++done;
    if (++stage == stages) stage = 0, ++entry;
  }
};

// Strips of a stage: all but the last stage of an image are full.
__device__ inline int strips_of(const Params& p, int stage) {
  return min(p.stage_strips, p.strips - stage * p.stage_strips);
}

}  // namespace dsv4::experts_few
