// The main loop: sums of the tile over the units of the CTA. Warpgroup j has rows 64 j .. of the
// tile, its warp w rows 16 w .. of these. A lane (row g = lane / 4, quarter c = lane % 4) decodes
// block c of a unit in rows g and g + 8, four columns for each product.
//
// A step is half a unit, four products of 16 columns. While the tensor cores work on a step, the
// warps decode the next one, if A has two buffers (config.cuh). Warps read codes once a unit.
//
// Registers with 128 columns: 64 sums, 16 of A, 8 codes (K = 5: 16), scales.

#pragma once

#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/config.cuh"

namespace dsv4::gemm::kbit_wide {

// sums[4 n + i]: row g + i / 2 * 8 of the warp's 16, column 8 n + 2 c + i % 2.
template <class C>
using Sums = float[C::kColumns / 2];

inline constexpr int kHalfProducts = 4;

// The row of the tile that is row g of this warp.
__device__ inline int row_of(int thread) {
  return thread / kWarp * 16 + thread % kWarp / 4;
}

// A lane's block in rows g and g + 8.
template <class C>
struct LaneBlocks {
  using Lookup = typename C::Lookup;
  typename Lookup::Codes codes[2];
  uint32_t scale[2];

  // codes, scales: of the lane's block in row g
  __device__ void load(const unsigned char* from, const unsigned char* scales,
                       uint32_t lane_bytes) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t plane[C::K];
      load_planes<C::K>(from + r * 8 * (kUnit / 8 * C::K), plane);
      codes[r] = Lookup::codes(plane, lane_bytes);
      scale[r] = scales[r * 8 * kScaleUnits * kUnitBlocks] * Lookup::kScaleUnit;
    }
  }
  // Products 4 half .. 4 half + 3.
  __device__ void decode(int half, const unsigned char* table, uint32_t lane_bytes,
                         uint32_t (&a)[kHalfProducts][4]) const {
#pragma unroll
    for (int t = 0; t < kHalfProducts; ++t)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t two[2];
        Lookup::look_up(codes[r], half * kHalfProducts + t, lane_bytes, table, two);
        a[t][r] = Lookup::scaled(two[0], scale[r]);
        a[t][2 + r] = Lookup::scaled(two[1], scale[r]);
      }
  }
};

template <class C>
__device__ void multiply(const Share& share, Shared<C>& shared, Sums<C>& sums) {
  using S = Shared<C>;
  const int thread = static_cast<int>(threadIdx.x), quarter = thread % 4;
  const uint32_t lane_bytes = ptx::opaque(C::Lookup::lane_bytes());
  const int row = row_of(thread);
  const int code_offset = row * (kUnit / 8 * C::K) + quarter * (kBlock / 8 * C::K),
            scale_offset = row * (kScaleUnits * kUnitBlocks) + quarter;
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(shared.x));
  sm90::RingCursor at;
  uint32_t a[C::kBuffers][kHalfProducts][4];
#pragma unroll
  for (float& sum : sums) sum = 0;
  int previous = 0;  // the stage of the unit before
#pragma unroll 1
  for (int unit = 0; unit < share.units; ++unit) {
    shared.full[at.stage].wait(at.phase);
    const uint64_t x_of_unit = ptx::advance_desc(x, static_cast<uint32_t>(at.stage * S::kXBytes));
    LaneBlocks<C> blocks;
    blocks.load(shared.codes[at.stage] + code_offset,
                shared.scales[share.scale_stage<C>(unit)] + scale_offset +
                    (share.first_unit + unit) % kScaleUnits * kUnitBlocks,
                lane_bytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      constexpr int kInFlight = C::kBuffers - 1;
      auto& operand = a[half % C::kBuffers];
      ptx::wgmma_wait_group<kInFlight>();   // the products that read this buffer are done
      if (half == kInFlight && unit > 0) {  // and so are all of the unit before
        if (thread % kWarp == 0) shared.empty[previous].arrive();
      }
      blocks.decode(half, shared.table, lane_bytes, operand);
      ptx::wgmma_fence();
#pragma unroll
      for (int t = 0; t < kHalfProducts; ++t)
        ptx::Wgmma<typename C::X, C::kColumns>::run(
            sums, operand[t],
            ptx::advance_desc(x_of_unit, static_cast<uint32_t>(half * S::kHalfBytes + 32 * t)), 1);
      ptx::wgmma_commit_group();
    }
    previous = at.stage;
    at.next(S::kStages);
  }
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_fence_operand(sums);
}

}  // namespace dsv4::gemm::kbit_wide
