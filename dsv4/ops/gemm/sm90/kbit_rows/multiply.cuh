// The products of a warpgroup in a round by wgmma, for 16 and 32 rows of x: its rows of the weight,
// decoded in registers, times x.
// While the tensor cores work on half of a unit, the warps decode the other half.

#pragma once

#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/block_codes.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/ring.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/x_cells.cuh"
#include "dsv4/ops/gemm/weights/kbit_lookup.cuh"

namespace dsv4::gemm::kbit_rows {

template <int K, class X, int kCells>
__device__ void multiply_together(const Params& p, const Memory& memory, const Share& share,
                                  Ring<K>& ring, Scales& scales, Sums<columns_of(kCells)>& sums) {
  constexpr int N = columns_of(kCells);
  using Lookup = KbitLookup<K, X, table_copies(kCells)>;
  const Plan& plan = p.plan;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % kWarp;
  const int row = thread / kWarp * 16 + lane / 4;
  const int pitch = plan.stage_units * 16 * K;
  // Rows of the warpgroup that are not there repeat the last one. Opaque: not to be computed again
  // in the loop.
  const int offset[2] = {ptx::opaque(min(row, plan.rows - 1) * pitch + lane % 4 * (4 * K)),
                         ptx::opaque(min(row + 8, plan.rows - 1) * pitch + lane % 4 * (4 * K))};
  const uint32_t lane_bytes = ptx::opaque(Lookup::lane_bytes());
  const unsigned char* const table = memory.table();
  const int first_unit = share.first_stage * plan.stage_units;
  const int end_unit = min(plan.units, first_unit + share.stages * plan.stage_units);
  // Lower and upper word of the descriptor of a step; a unit later the lower is by unit_cells more.
  constexpr uint32_t kStepCells = 2 * kCells, kUnitCells = 8 * kStepCells;
  constexpr uint64_t kUpper = ptx::make_smem_desc_cells(0, 16 * kCells, 128) >> 32 << 32;
  uint32_t next_x =
      static_cast<uint32_t>(
          ptx::make_smem_desc_cells(ptx::smem_address(memory.x()), 16 * kCells, 128)) +
      static_cast<uint32_t>(first_unit - plan.rank_first_unit(share.rank)) * kUnitCells;
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[h][i] = 0;

  uint32_t a[2][4][4];
  int unit = first_unit;
#pragma unroll 1
  for (int stage = 0; stage < share.stages; ++stage) {
    const unsigned char* from = ring.next();
    const int end = min(unit + plan.stage_units, end_unit);
#pragma unroll 1
    for (; unit < end; ++unit, from += 16 * K) {
      uint32_t plane[2][K], scale[2];
      load_planes<K>(from + offset[0], plane[0]);
      load_planes<K>(from + offset[1], plane[1]);
      scales.take(scale, 1);
      // The shuffle shows the compiler that all lanes have the same descriptors.
      uint32_t x = __shfl_sync(~0u, next_x, 0);
      next_x += kUnitCells;
      typename Lookup::Codes codes[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        codes[r] = Lookup::codes(plane[r], lane_bytes);
        scale[r] *= Lookup::kScaleUnit;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        ptx::wgmma_wait_group<1>();  // the products of this half of the unit before are done
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            uint32_t two[2];
            Lookup::look_up(codes[r], 4 * h + t, lane_bytes, table, two);
            a[h][t][r] = Lookup::scaled(two[0], scale[r]);
            a[h][t][2 + r] = Lookup::scaled(two[1], scale[r]);
          }
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          ptx::Wgmma<X, N>::run(sums[h], a[h][t], kUpper | x, 1);
          x += kStepCells;
        }
        ptx::wgmma_commit_group();
      }
    }
    ring.free();
  }
  ptx::wgmma_wait_group<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) ptx::wgmma_fence_operand(sums[h]);
}

}  // namespace dsv4::gemm::kbit_rows
