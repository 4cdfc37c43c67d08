// The epilogue warps: h from gate and up, or rows of out. A lane 4g + t has rows g and g + 8 of
// pair t of an entry: its columns 2t and 2t + 1 are the two terms of that pair.

#pragma once

#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/cuda/store_at.cuh"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/params.h"

namespace dsv4::gemm::image_rows {

using experts_e4m3::add_groups, experts_e4m3::Entry, experts_e4m3::Range, experts_e4m3::Work;

// The factor of the sums of matrix `which` (w1, w3, w2) of an expert.
__device__ inline float factor_of(const Params& p, int expert, int which) {
  return p.scale2 == nullptr ? p.factor : p.factor * p.scale2[expert * 3 + which];
}

// What is common to both: waits for the sums of each item, and calls store(entry, stage, buffer).
template <class S, class Store>
__device__ void for_each_item(const Params& p, const Range& range, S& shared, const Store& store) {
  using namespace experts_e4m3;
  for (Work work(range); work.more(); work.next(p)) {
    const int buffer = work.done % kBuffers;
    ptx::barrier_sync(filled_barrier(buffer), kFilledThreads);
    store(*work.entry, work.stage, buffer);
    shared.drained[buffer].arrive();
  }
}

// h [pair, row] bf16. Warp i has the strips i of gate and of up.
template <class S>
__device__ void finish_gate_up(const Params& p, const Range& range, const float* pair_weight,
                               S& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, m = lane % 4;
  const int own = static_cast<int>(threadIdx.x) / kWarp - experts_e4m3::kMathWarps;
  for_each_item(p, range, shared, [&](const Entry& entry, int stage, int buffer) {
    const float4 gate = add_groups(shared, buffer, own);
    const float4 up = add_groups(shared, buffer, kPairStrips + own);
    if (m >= entry.pairs) return;
    const float gate_factor = factor_of(p, entry.expert, 0),
                up_factor = factor_of(p, entry.expert, 1);
    const int pair = entry.first_pair + m;
    const float weight = pair_weight[pair];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = (stage * kPairStrips + own) * kUnitRows + lane / 4 + 8 * i;
      if (row >= p.rows) continue;
      const float g = i == 0 ? gate.x + gate.y : gate.z + gate.w;
      const float u = i == 0 ? up.x + up.y : up.z + up.w;
      p.out[pair * p.out_stride + row] =
          from_float<bf16>(gated(p.gated, g * gate_factor, u * up_factor, weight));
    }
  });
}

// out [pair, row]. Warp i has half of the strips.
template <class S>
__device__ void finish_rows(const Params& p, const Range& range, S& shared) {
  constexpr int kOwn = experts_e4m3::kStrips / experts_e4m3::kEpilogueWarps;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, m = lane % 4;
  const int first = (static_cast<int>(threadIdx.x) / kWarp - experts_e4m3::kMathWarps) * kOwn;
  for_each_item(p, range, shared, [&](const Entry& entry, int stage, int buffer) {
    const float factor = factor_of(p, entry.expert, 2);
    const int64_t to = (entry.first_pair + m) * p.to_stride;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float4 sums = add_groups(shared, buffer, first + i);
      const int row = (stage * experts_e4m3::kStrips + first + i) * kUnitRows + lane / 4;
      if (m >= entry.pairs) continue;
      if (row < p.rows) cuda::store_at(p.to, p.to_dtype, to + row, (sums.x + sums.y) * factor);
      if (row + 8 < p.rows)
        cuda::store_at(p.to, p.to_dtype, to + row + 8, (sums.z + sums.w) * factor);
    }
  });
}

}  // namespace dsv4::gemm::image_rows
