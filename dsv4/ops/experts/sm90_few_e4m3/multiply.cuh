// The math warps: warp w of warpgroup j multiplies strip w of an item by chunks j, j + 4, ...

#pragma once

#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/upper_f16.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/experts/sm90_few/multiply.cuh"
#include "dsv4/ops/experts/sm90_few_e4m3/activations.cuh"

namespace dsv4::experts_few_e4m3 {

using experts_few::block_scales;
using experts_few::Unit;

inline constexpr int kBlocks = kQ8Group / kKbitBlock;  // of a group of Q8

// words: the K words of one step of 64 columns. Fragment of block b of 32: four codes a register.
// The upper four nibbles move down through the FMA pipe: byte permutes and masks keep the ALU busy.
// As f16 they are finite, since bit 11 is 0.
template <int K>
__device__ inline void decode_block(const Table& table, const uint32_t* words, int b,
                                    uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t nibbles = kbit_nibbles(words, K, 2 * b + i);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t four = h == 0 ? nibbles : ptx::upper_f16(nibbles);
      a[2 * i + h] = ptx::prmt(table.low[0], table.low[K == 2 ? 0 : 1], four);
      if constexpr (K == 4) a[2 * i + h] ^= kbit_byte_signs(words, 2 * b + i, h);
    }
  }
}

// Adds the products of a group of 128 columns to sums: its blocks times their scales first.
template <int K>
__device__ inline void promote(float (&part)[kBlocks][4], const Unit<K>& unit, int half,
                               const float (&x_scale)[kPairs], float (&sums)[4]) {
  const float2 factor =
      *reinterpret_cast<const float2*>(x_scale + static_cast<int>(threadIdx.x) % 4 * 2);
  float scaled[4] = {};
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    ptx::wgmma_fence_operand(part[b]);
    const float2 scale = block_scales(unit.scales, half * kBlocks + b);
#pragma unroll
    for (int i = 0; i < 4; ++i) scaled[i] = fmaf(part[b][i], i < 2 ? scale.x : scale.y, scaled[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sums[i] = fmaf(scaled[i], i % 2 == 0 ? factor.x : factor.y, sums[i]);
}

// Adds 16 rows x 8 pairs: sums over 256 columns, weights without the table's unit, 16 and scale2.
// Blocks of 32 columns are summed by the tensor core, scaled and added in f32, and so are groups of
// 128.
// tiles: descriptor of the first of two; x_scale: [2, 8]
template <int K>
__device__ inline void add_unit(const Table& table, const Unit<K>& unit, uint64_t tiles,
                                const float (*x_scale)[kPairs], float (&sums)[4]) {
#pragma unroll
  for (int half = 0; half < kUnitColumns / kQ8Group; ++half) {
    uint32_t a[kBlocks][4];
    float part[kBlocks][4];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b)
      decode_block<K>(table, unit.words + (half * 2 + b / 2) * K, b % 2, a[b]);
    ptx::wgmma_fence();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint64_t tile = ptx::advance_desc(
          tiles, static_cast<uint32_t>(half * sizeof(ActivationTile)) + b * kKbitBlock);
      ptx::Wgmma<__nv_fp8_e4m3, kPairs>::run(part[b], a[b], tile, 0);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    promote(part, unit, half, x_scale[half], sums);
  }
}

template <int K, bool kGateUp>
__device__ void multiply(const Params& p, const Range& range, Shared<K>& shared) {
  constexpr int kStages = Shared<K>::kStages;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = warp / kGroupWarps, strip = warp % kGroupWarps, steps = steps_of(p);
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(shared.x));
  const Entry* loaded = nullptr;  // entry of x
  int copied = 0;                 // stages before this one
  for (Work work(range); work.more(); work.next(p)) {
    if (loaded != work.entry) {
      load_activations<K, kGateUp>(p, *work.entry, group, shared);
      loaded = work.entry;
    }
    float sums[4] = {};
    for (int step = 0; step < steps; ++step, ++copied) {
      const int stage = copied % kStages, chunk = step * kGroups + group;
      shared.full[stage].wait(copied / kStages % 2);
      // A warp past the last strip or chunk reads bytes of other stages.
      const Unit<K> unit(shared.stages[stage] + (strip * kGroups + group) * kUnitBytes<K>);
      __syncwarp();
      if (lane == 0) shared.empty[stage].arrive();
      if (chunk >= p.chunks) continue;
      add_unit<K>(p.table, unit,
                  ptx::advance_desc(x, static_cast<uint32_t>(chunk * 2 * sizeof(ActivationTile))),
                  shared.x_scale + 2 * chunk, sums);
    }
    const int buffer = work.done % kBuffers;
    shared.drained[buffer].wait((work.done / kBuffers + 1) % 2);
    shared.partials[buffer].sums[warp][lane] = {sums[0], sums[1], sums[2], sums[3]};
    ptx::barrier_arrive(filled_barrier(buffer), kFilledThreads);
  }
}

}  // namespace dsv4::experts_few_e4m3
