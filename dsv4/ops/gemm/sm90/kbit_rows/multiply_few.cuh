// The products of the warps of a warpgroup in a round by mma.sync, for up to 8 rows of x: 16 rows
// of the weight a warp, decoded in registers. No warp waits for another, and few registers are
// needed, so that an SM has room for a CTA of the next kernel.

#pragma once

#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/mma_f16.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/block_codes.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/ring.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/x_cells.cuh"
#include "dsv4/ops/gemm/weights/kbit_lookup.cuh"

namespace dsv4::gemm::kbit_rows {

// codes, scale: of the lane's two rows. cells: the lane's first cell of the unit
template <class Lookup, class X, int kCells>
__device__ void add_unit(const typename Lookup::Codes (&codes)[2], const uint32_t (&scale)[2],
                         uint32_t lane_bytes, const unsigned char* table,
                         const unsigned char* cells, Sums<8>& sums, int tune) {
#pragma unroll
  for (int q = 0; q < 4; ++q) {
    const uint4 x = *reinterpret_cast<const uint4*>(cells + q * kCells * 64);
    const uint32_t b[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t a[4];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        uint32_t two[2];
        if (tune & 2) {
          two[0] = codes[r].word[i % 2] + q, two[1] = codes[r].word[i % 2] ^ q;
        } else {
          Lookup::look_up(codes[r], 2 * q + i, lane_bytes, table, two);
        }
        a[r] = Lookup::scaled(two[0], scale[r]);
        a[2 + r] = Lookup::scaled(two[1], scale[r]);
      }
      if (tune & 4) {
        sums[i][0] += __uint_as_float(a[0] ^ a[1]), sums[i][1] += __uint_as_float(a[2] ^ a[3] ^ b[2 * i]);
      } else if constexpr (Lookup::kIsF16) {
        ptx::mma_m16n8k16_f16(sums[i], a, b[2 * i], b[2 * i + 1]);
      } else {
        ptx::mma_m16n8k16_bf16(sums[i], a, b[2 * i], b[2 * i + 1]);
      }
    }
  }
}

template <int K, class X, int kCells>
__device__ void multiply_few(const Params& p, const Memory& memory, const Share& share,
                             Ring<K>& ring, Scales& scales, Sums<8>& sums) {
  using Lookup = KbitLookup<K, X, table_copies(kCells)>;
  const Plan& plan = p.plan;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % kWarp;
  const int warp = thread / kWarp * 16, step = plan.warps_of_rows();
  const int warp_row = warp % plan.sums_rows(), row = warp_row + lane / 4;
  const int pitch = plan.stage_units * 16 * K;
  // Rows that are not there repeat the last one. Opaque: not to be computed again in the loop.
  const int offset[2] = {ptx::opaque(min(row, plan.rows - 1) * pitch + lane % 4 * (4 * K)),
                         ptx::opaque(min(row + 8, plan.rows - 1) * pitch + lane % 4 * (4 * K))};
  const uint32_t lane_bytes = ptx::opaque(Lookup::lane_bytes());
  int first = share.first_stage * plan.stage_units;  // of the stage
  // A warp without rows only keeps the ring going.
  const int end_unit =
      warp_row < plan.rows ? min(plan.units, first + share.stages * plan.stage_units) : first;
  int unit = first + warp / plan.sums_rows();
  const unsigned char* cells = memory.x() + lane / 4 % kCells * 64 + lane % 4 * 16 +
                               (unit - plan.rank_first_unit(share.rank)) * kCells * 256;
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[h][i] = 0;

#pragma unroll 1
  for (int stage = 0; stage < share.stages; ++stage) {
    const unsigned char* from = ring.next() + (unit - first) * 16 * K;
    first += plan.stage_units;
    const int end = min(first, end_unit);
#pragma unroll 1
    for (; unit < end; unit += step, from += step * 16 * K, cells += step * kCells * 256) {
      uint32_t plane[2][K], scale[2];
      load_planes<K>(from + offset[0], plane[0]);
      load_planes<K>(from + offset[1], plane[1]);
      scales.take(scale, step);
      typename Lookup::Codes codes[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        codes[r] = Lookup::codes(plane[r], lane_bytes);
        scale[r] *= Lookup::kScaleUnit;
      }
      add_unit<Lookup, X, kCells>(codes, scale, lane_bytes, memory.table(), cells, sums, p.tune);
    }
    ring.free();
  }
}

}  // namespace dsv4::gemm::kbit_rows
