// The stages of a CTA: neighbors in the list of all stages of all entries, in order of entry, so
// its warps load activations once or twice.

#pragma once

#include "dsv4/ops/gemm/sm90/experts/params.h"

namespace dsv4::gemm::experts {

struct Range {
  const Entry *first, *second;  // entries: the one where the CTA begins, and the next
  int stage, stages;            // the first stage of it; all of this CTA

  // Reads the start of this CTA: call after griddepcontrol_wait().
  __device__ explicit Range(const Params& p)
      : first(&p.starts[blockIdx.x].entry),
        second(p.entries + p.starts[blockIdx.x].index + 1),
        stage(p.starts[blockIdx.x].stage),
        stages(p.starts[blockIdx.x].stages) {}
  // `count` entries in shared memory.
  __device__ Range(const Params& p, const Entry* entries, int count) {
    const int all = count * p.stages, ctas = static_cast<int>(gridDim.x);
    const int each = all / ctas, more = all % ctas, cta = static_cast<int>(blockIdx.x);
    const int begin = cta * each + min(cta, more);
    first = entries + begin / p.stages, second = first + 1;
    stage = begin % p.stages, stages = each + (cta < more ? 1 : 0);
  }
};

struct Work {
  const Entry *entry, *following;  // the current one; after it
  int stage;                       // the current stage of it
  int left;                        // stages of this CTA, with this one
  int done;                        // stages of this CTA before this one

  __device__ explicit Work(const Range& range, int done_before = 0)
      : entry(range.first),
        following(range.second),
        stage(range.stage),
        left(range.stages),
        done(done_before) {}

  __device__ bool more() const { return left > 0; }
  __device__ void next(const Params& p) {
    --left, ++done;
    if (++stage < p.stages) return;
    stage = 0;
    entry = following++;
  }
};

// Strips of a stage: all but the last stage of an image are full.
__device__ inline int strips_of(const Params& p, int stage) {
  return min(p.stage_strips, p.strips - stage * p.stage_strips);
}

}  // namespace dsv4::gemm::experts
