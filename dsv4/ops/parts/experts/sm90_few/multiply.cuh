// The math warps: warp w multiplies chunk w % chunks of strip w / chunks of every stage.

#pragma once

#include "dsv4/device/ptx/mma_f16.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/parts/experts/sm90_few/activations.cuh"

namespace dsv4::experts_kernel::sm90_few {

// 16 rows x 8 pairs: sums over 256 columns, weights without 2^exponent, 16 and scale2. Blocks of
// 32 columns are summed by the tensor core, scaled and added in f32, and so are groups of 128.
template <int K>
__device__ inline float4 multiply_unit(const KbitTable& table, const TwoCodeTable<K>& two_codes,
                                       const gemm::KbitImageF16<K>& unit, const Activations& x) {
  using W = gemm::KbitImageF16<K>;
  float4 sums{0, 0, 0, 0};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    float scaled[4] = {};
#pragma unroll
    for (int b = 0; b < W::kBlocks / kGroups; ++b) {
      const int block = group * W::kBlocks / kGroups + b;
      float part[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t a[4];
        unit.decode(table, two_codes, block, half, a);
        const uint32_t* const operand = x.b + 4 * block + 2 * half;
        ptx::mma_m16n8k16_f16(part, a, operand[0], operand[1]);
      }
      const float2 scale = unit.scale(block);
#pragma unroll
      for (int i = 0; i < 4; ++i) scaled[i] = fmaf(part[i], i < 2 ? scale.x : scale.y, scaled[i]);
    }
    sums.x = fmaf(scaled[0], x.scale[group][0], sums.x);
    sums.y = fmaf(scaled[1], x.scale[group][1], sums.y);
    sums.z = fmaf(scaled[2], x.scale[group][0], sums.z);
    sums.w = fmaf(scaled[3], x.scale[group][1], sums.w);
  }
  return sums;
}

template <int K, bool kGateUp>
__device__ void multiply(const Params& p, Shared<K>& shared) {
  constexpr int kStages = Shared<K>::kStages;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int strip = warp / p.chunks, chunk = warp % p.chunks;
  Activations x;
  const Entry* loaded = nullptr;  // entry of x
  for (Work work{Range(p)}; work.more(); work.next(p)) {
    if (loaded != work.entry) {
      load_activations<kGateUp>(p, *work.entry, chunk, x);
      loaded = work.entry;
    }
    const int stage = work.done % kStages, buffer = work.done % kBuffers;
    shared.full[stage].wait(work.done / kStages % 2);
    // A warp past the last strip reads bytes of other warps and stores sums that are not read.
    const gemm::KbitImageF16<K> unit(shared.stages[stage] + warp * kUnitBytes<K>);
    const float4 sums = multiply_unit<K>(p.table, shared.two_codes, unit, x);
    // Not sooner: the unit must be in registers (docs/lessons.md).
    __syncwarp();
    if (lane == 0) shared.empty[stage].arrive();
    shared.drained[buffer].wait((work.done / kBuffers + 1) % 2);
    if (strip < strips_of(p, work.stage)) shared.partials[buffer].sums[warp][lane] = sums;
    ptx::barrier_arrive(filled_barrier(buffer), kFilledThreads);
  }
}

}  // namespace dsv4::experts_kernel::sm90_few
