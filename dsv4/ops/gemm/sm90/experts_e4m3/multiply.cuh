// The math warps: warp w of warpgroup j multiplies strip w of an item by chunks j, j + 4, ...

#pragma once

#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_e4m3.cuh"
#include "dsv4/ops/gemm/x/rows_of_experts.cuh"

namespace dsv4::gemm::experts_e4m3 {

// x_scale: of a group, [8]. Unit: a KbitImageE4m3, here and below
template <class Unit>
__device__ inline void promote(typename Unit::Sums& part, const Unit& unit, int half,
                               const float (&x_scale)[kPairs], typename Unit::Sums& sums) {
  const float2 factor = *reinterpret_cast<const float2*>(x_scale + static_cast<int>(threadIdx.x) %
                                                                       4 * 2 % Unit::kWidth);
#pragma unroll
  for (int set = 0; set < Unit::kSets; ++set) {
    ptx::wgmma_fence_operand(part[set]);
    const float2 scale = unit.scale(half, set);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // A product with a power of two.
      const float factor_of_sum = (i < 2 ? scale.x : scale.y) * (i % 2 == 0 ? factor.x : factor.y);
      sums[set][i] = fmaf(part[set][i], factor_of_sum, sums[set][i]);
    }
  }
}

// Adds 16 rows x 8 columns: sums over 256 columns of x, weights without what Params::factor has and
// scale2.
// tiles: descriptor of the first of two; x_scale: [2, 8]
template <class Unit>
__device__ inline void add_unit(const KbitTable& table, const Unit& unit, uint64_t tiles,
                                const float (*x_scale)[kPairs], typename Unit::Sums& sums) {
  constexpr int kAtOnce = Unit::kSets == 4 ? 1 : kHalves;  // halves; registers limit it
#pragma unroll
  for (int first = 0; first < kHalves; first += kAtOnce) {
    uint32_t a[kAtOnce * kGroupProducts][4];
    typename Unit::Sums part[kAtOnce];
#pragma unroll
    for (int b = 0; b < kAtOnce * kGroupProducts; ++b)
      unit.decode(table, first * kGroupProducts + b, a[b]);
    ptx::wgmma_fence();
#pragma unroll
    for (int b = 0; b < kAtOnce * kGroupProducts; ++b) {
      const int half = b / kGroupProducts, in_group = b % kGroupProducts;
      const uint64_t tile =
          ptx::advance_desc(tiles, static_cast<uint32_t>((first + half) * sizeof(ActivationTile)) +
                                       in_group * kProductColumns);
      ptx::Wgmma<__nv_fp8_e4m3, kPairs>::run(part[half][in_group / Unit::kSetProducts], a[b], tile,
                                             in_group % Unit::kSetProducts);
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int half = 0; half < kAtOnce; ++half)
      promote(part[half], unit, first + half, x_scale[first + half], sums);
  }
}

// The blocks of each group of 128 were summed apart, by their place b in it: (0 + 1) + (2 + 3), of
// 8 blocks that + ((4 + 5) + (6 + 7)).
// Result: rows g and g + 8 of pairs 2t and 2t + 1.
template <class Unit>
__device__ inline float4 add_blocks(const typename Unit::Sums& sums) {
  const auto other = [](float x, int lanes) { return x + __shfl_xor_sync(~0u, x, lanes); };
  const auto of_set = [&](float x) {
    if constexpr (Unit::kWidth == 2) return other(other(x, 1), 2);
    return Unit::kWidth == 4 ? other(x, 2) : x;
  };
  float all[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    all[i] = of_set(sums[0][i]);
    if constexpr (Unit::kSets > 1) all[i] += of_set(sums[1][i]);
    if constexpr (Unit::kSets > 2) all[i] += of_set(sums[2][i]) + of_set(sums[3][i]);
  }
  return {all[0], all[1], all[2], all[3]};
}

// One item. x, x_scale: of its first tile. ring: of its first step; afterwards of the first step of
// the next item.
template <int kWidth, class S>
__device__ inline float4 multiply_item(const Params& p, uint64_t x, const float (*x_scale)[kPairs],
                                       int group, RingPlace<S>& ring, S& shared) {
  using Unit = KbitImageE4m3<S::K, S::kScale, kWidth>;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int strip = static_cast<int>(threadIdx.x) / kWarp % kGroupWarps;
  typename Unit::Sums sums = {};
  for (int chunk = group; chunk < p.chunks + group; chunk += kGroups, ring.next()) {
    shared.full[ring.stage].wait(ring.phase);
    if (chunk < p.chunks) {
      // A warp past the last strip reads bytes of other stages.
      const Unit unit(shared.stages[ring.stage] + (strip * kGroups + group) * S::kUnit);
      add_unit(p.table, unit,
               ptx::advance_desc(x, static_cast<uint32_t>(chunk * 2 * sizeof(ActivationTile))),
               x_scale + 2 * chunk, sums);
    }
    // Not sooner: the unit must be in registers (docs/lessons.md).
    __syncwarp();
    if (lane == 0) shared.empty[ring.stage].arrive();
  }
  return add_blocks<Unit>(sums);
}

// Hands the sums of a math warp to the epilogue. use: of the buffers, from 0
template <class S>
__device__ inline void hand_over(float4 sums, int use, S& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, buffer = use % kBuffers;
  shared.drained[buffer].wait((use / kBuffers + 1) % 2);
  shared.partials[buffer].sums[warp][lane] = sums;
  ptx::barrier_arrive(filled_barrier(buffer), kFilledThreads);
}

// What the epilogue takes: the sums of a lane for a strip of an item, rows g and g + 8 of columns
// 2t and 2t + 1.
template <class S>
__device__ inline float4 add_groups(const S& shared, int buffer, int strip) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float4 sums = {};
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const float4 part = shared.partials[buffer].sums[group * kGroupWarps + strip][lane];
    sums.x += part.x, sums.y += part.y, sums.z += part.z, sums.w += part.w;
  }
  return sums;
}

template <bool kGateUp, class S>
__device__ void multiply(const Params& p, const Range& range, S& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = __shfl_sync(~0u, warp / kGroupWarps, 0);  // so that addresses are uniform
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(shared.x));
  const Entry* loaded = nullptr;  // entry of x
  int width = 0;
  RingPlace<S> ring;
  for (Work work(range); work.more(); work.next(p)) {
    if (loaded != work.entry) {
      load_activations<kGateUp>(p, *work.entry, group, shared);
      loaded = work.entry;
      width = width_of(work.entry->pairs * S::kTerms);
    }
    float4 sums;
    if (width == 2) {
      sums = multiply_item<2>(p, x, shared.x_scale, group, ring, shared);
    } else if (width == 4 || most_pairs(S::kScale) == 4) {
      sums = multiply_item<4>(p, x, shared.x_scale, group, ring, shared);
    } else {
      sums = multiply_item<most_pairs(S::kScale)>(p, x, shared.x_scale, group, ring, shared);
    }
    hand_over(sums, work.done, shared);
  }
}

}  // namespace dsv4::gemm::experts_e4m3
