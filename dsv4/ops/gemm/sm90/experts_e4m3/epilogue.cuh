// The epilogue warps: each finishes half of the strips of every item. It adds the partial sums of
// the warpgroups in their order and stores 16 rows of up to 8 pairs.

#pragma once

#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/epilogue/expert_rows.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"

namespace dsv4::gemm::experts_e4m3 {

// used: how often buffers were used before
template <bool kGateUp, class S>
__device__ void finish(const Params& p, const Range& range, const float* pair_weight, S& shared,
                       int used = 0) {
  constexpr int kOwn = kStrips / kEpilogueWarps;
  const int first = (static_cast<int>(threadIdx.x) / kWarp - kMathWarps) * kOwn;
  gemm::experts::EpilogueEntry e;
  const Entry* loaded = nullptr;  // entry of e
  for (Work work(range, used); work.more(); work.next(p)) {
    const int buffer = work.done % kBuffers;
    if (loaded != work.entry) {
      e = gemm::experts::EpilogueEntry::load<kGateUp>(p, *work.entry, pair_weight);
      loaded = work.entry;
    }
    ptx::barrier_sync(filled_barrier(buffer), kFilledThreads);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (first + i >= strips_of(p, work.stage)) break;
      const float4 all = add_groups(shared, buffer, first + i);
      const float sums[4] = {all.x, all.y, all.z, all.w};
      const int strip = work.stage * kStrips + first + i;
      if constexpr (kGateUp) {
        gemm::experts::store_hidden(p, e, strip, sums);
      } else {
        gemm::experts::store_down(p, e, strip, sums);
      }
    }
    shared.drained[buffer].arrive();
  }
}

}  // namespace dsv4::gemm::experts_e4m3
