// The kernel of kbit_experts.h.
//
// Problem    out[m, n] = sum_k x[row(m), k] codebook[code_e[n, k]] scale_e[n, k / 32] scale2_e for
//            the rows m of a list, e the matrix of m; or that of gate and up, and the gated step.
//            Operands are bf16 or f16, sums f32; weights are rounded twice
//            (weights/kbit_lookup.cuh)
// Bound      reading the weights of the matrices that have rows; look-ups, as in
//            kbit_stream/kernel.cuh, whose loop this is
// Tiles      a warp multiplies 16 rows x 128 columns of a weight (A, decoded in registers) with up
//            to 8 rows of x (B, in registers)
// Roles      8 warps, by K and by rows (kbit_experts_plan.h). Each streams its own part of the
//            weights through a ring of its own over all blocks of the CTA; they meet where sums are
//            added, once in a block
// Before the wait for the previous kernel: the table; where the list is older, also the first slots
//            and scales
// Smem       the table 64 KB, rings, two turns of sums: two CTAs on an SM

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/operands.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts/ring.cuh"
#include "dsv4/ops/gemm/cuda/store_at.cuh"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"

namespace dsv4::gemm::kbit_experts {

// C fragments by tile: token 2 c (+ 1), row g (+ 8) of a tile.
using Sums = float[kGroupTiles][1][4];

// The products of a warp in a block.
template <int K, class X, int kSides, bool kWhole>
__device__ void multiply(const Share& share, int tiles, const Memory<K>& memory,
                         Ring<K, kSides, kWhole>& ring, Operands<kSides, kWhole>& operands,
                         Sums& sums) {
  using Lookup = KbitLookup<K, X>;
  const uint32_t lane_bytes = ptx::opaque(Lookup::lane_bytes());
  const unsigned char* const slots = memory.ring(share.warp);
  const int offset =
      ptx::opaque(share.lane / 4 * (kUnit / 8 * K) + share.lane % 4 * (kBlock / 8 * K));
#pragma unroll
  for (auto& tile : sums)
#pragma unroll
    for (float& sum : tile[0]) sum = 0;
#pragma unroll 1
  for (int unit = share.first_unit; unit < share.end_unit; ++unit) {
    ScaleBytes scale;
    XBlocks x;
    operands.take(scale, x);
#pragma unroll
    for (int i = 0; i < kGroupTiles; ++i) {
      if (kSides == 1 && i >= tiles) break;
      const unsigned char* const slot = slots + (offset + ring.next());
      scale[i][0] *= Lookup::kScaleUnit, scale[i][1] *= Lookup::kScaleUnit;
      kbit_stream::multiply_slot<K, X, kTokens>(slot, memory.table(), lane_bytes, scale[i], x,
                                                sums[i]);
    }
  }
}

template <int K>
__device__ void keep_sums(const Memory<K>& memory, const Share& share, int turn, const Sums& sums) {
#pragma unroll
  for (int i = 0; i < kGroupTiles; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      memory.sums(turn, share.warp,
                  share.lane % 4 * 2 + j % 2)[i * kTileRows + share.lane / 4 + j / 2 * 8] =
          sums[i][0][j];
}

// By all threads: adds the shares of K in order. factor: of the sums
template <int K, int kSides>
__device__ void store_block(const Params& p, const Memory<K>& memory, const Walk& at, int turn,
                            float factor) {
  const Plan& plan = p.plan;
  const cuda::RowTile item = p.tiles[at.item];
  const int group_rows = plan.group_rows(), rows = plan.block_rows();
  const int first = at.row_block * rows;
  float scale2[kSides];
#pragma unroll
  for (int s = 0; s < kSides; ++s)
    scale2[s] = factor * (p.scale2s[s] == nullptr ? p.scale2[s] : p.scale2s[s][item.matrix]);
  for (int i = static_cast<int>(threadIdx.x); i < rows * item.rows; i += kThreads) {
    const int row = i % rows, token = i / rows;
    if (first + row >= p.n) continue;
    float sum[kSides] = {};
    for (int k = 0; k < plan.k_groups; ++k) {
      const float* const from =
          memory.sums(turn, row / group_rows * plan.k_groups + k, token) + row % group_rows;
#pragma unroll
      for (int s = 0; s < kSides; ++s) sum[s] += from[s * kTileRows];
    }
    const int pair = item.first_row + token;
    float value = sum[0] * scale2[0];
    if constexpr (kSides == 2) {
      const float weight = p.gated.weight == nullptr ? 1.f : p.gated.weight[pair];
      value = gated(p.gated, value, sum[1] * scale2[1], weight);
    }
    cuda::store_at(p.out, p.out_dtype, pair * p.out_stride + first + row, value);
  }
}

template <int K, class X, int kSides, bool kWhole>
__global__ void __launch_bounds__(kThreads, kCtasOfSm)
    kbit_experts_kernel(const __grid_constant__ Params params) {
  using Lookup = KbitLookup<K, X>;
  static_assert(Lookup::kTableBytes == Memory<K>::kAt.ring);
  const Plan& plan = params.plan;
  const Memory<K> memory;
  const float factor = Lookup::fill_book(params.codebook, memory.book());
  __syncthreads();
  Lookup::fill(memory.book(), memory.table(), kThreads);
  if (!params.list_is_older) ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const Share share(plan, *params.num_tiles, static_cast<int>(blockIdx.x));
  Ring<K, kSides, kWhole> ring(params, share, memory.ring(static_cast<int>(threadIdx.x) / kWarp));
  ring.fill();
  Operands<kSides, kWhole> operands(params, share);
  if (params.list_is_older) ptx::griddepcontrol_wait();
  operands.start();
  __syncthreads();
  const int tiles = kSides == 2 ? 2 : plan.row_tiles;
  Walk at(plan, share);
#pragma unroll 1
  for (int turn = 0; at.left > 0; at.next_block(plan), turn ^= 1) {
    Sums sums;
    multiply<K, X, kSides, kWhole>(share, tiles, memory, ring, operands, sums);
    keep_sums<K>(memory, share, turn, sums);
    __syncthreads();  // and the sums of the block before the last one are read
    store_block<K, kSides>(params, memory, at, turn, factor);
  }
}

}  // namespace dsv4::gemm::kbit_experts
