// The epilogue warps: warp e finishes stages e, e + 3, ... of the CTA. It adds the partial sums of
// a strip in ascending order of columns and stores 16 rows of up to 8 pairs.
//
// Lane 4g + t holds rows g (gate) and g + 8 (up) of pairs 2t and 2t + 1.

#pragma once

#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/epilogue/expert_rows.cuh"
#include "dsv4/ops/parts/experts/sm90_few/config.cuh"

namespace dsv4::experts_kernel::sm90_few {

template <int K, bool kGateUp>
__device__ void finish(const Params& p, Shared<K>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int buffer = static_cast<int>(threadIdx.x) / kWarp - kMathWarps;
  EpilogueEntry e;
  const Entry* loaded = nullptr;  // entry of e
  for (Work work{Range(p)}; work.more(); work.next(p)) {
    if (work.done % kBuffers != buffer) continue;
    if (loaded != work.entry) {
      e = EpilogueEntry::load<kGateUp>(p, *work.entry, p.pair_weight);
      loaded = work.entry;
    }
    ptx::barrier_sync(filled_barrier(buffer), kFilledThreads);
    for (int strip = 0; strip < strips_of(p, work.stage); ++strip) {
      const float4* part = &shared.partials[buffer].sums[strip * p.chunks][lane];
      float sums[4] = {};
#pragma unroll 8
      for (int c = 0; c < p.chunks; ++c, part += kWarp) {
        sums[0] += part->x, sums[1] += part->y, sums[2] += part->z, sums[3] += part->w;
      }
      const int in_image = work.stage * p.stage_strips + strip;
      if constexpr (kGateUp) {
        store_hidden(p, e, in_image, sums);
      } else {
        store_down(p, e, in_image, sums);
      }
    }
    shared.drained[buffer].arrive();
  }
}

}  // namespace dsv4::experts_kernel::sm90_few
