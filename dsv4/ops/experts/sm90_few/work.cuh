// The stages of a CTA: neighbors in the list of all stages of all entries, in order of entry, so
// its warps load activations once or twice.

#pragma once

#include "dsv4/ops/experts/sm90_few/config.cuh"

namespace dsv4::experts_few {

struct Work {
  const Entry* entry;  // the current one
  int stage;           // the current stage of it
  int left;            // stages of this CTA, with this one
  int done = 0;        // stages of this CTA before this one

  // Reads the start of this CTA: call after griddepcontrol_wait().
  __device__ explicit Work(const Params& p)
      : entry(&p.starts[blockIdx.x].entry),
        stage(p.starts[blockIdx.x].stage),
        left(p.starts[blockIdx.x].stages) {}

  __device__ bool more() const { return left > 0; }
  __device__ void next(const Params& p) {
    --left, ++done;
    if (++stage < p.stages) return;
    stage = 0;
    // After the entry of the start comes the one that follows it in the list.
    const Start& start = p.starts[blockIdx.x];
    entry = entry == &start.entry ? p.entries + start.index + 1 : entry + 1;
  }
};

// Strips of a stage: all but the last stage of an image are full.
__device__ inline int strips_of(const Params& p, int stage) {
  return min(p.stage_strips, p.strips - stage * p.stage_strips);
}

}  // namespace dsv4::experts_few
