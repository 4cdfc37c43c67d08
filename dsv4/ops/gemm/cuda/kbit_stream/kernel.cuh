// The kernel of kbit_stream.h.
//
// Problem    out[t, n] = sum_k x[t, k] codebook[code[n, k]] scale[n, k / 32] scale2, for a few rows
//            of x. Operands are bf16 or f16, sums f32; weights are rounded twice
//            (weights/kbit_lookup.cuh)
// Bound      reading the weight, if two or more bytes of look-ups a weight fit into the same time:
//            128 bytes of shared memory a clock and SM
// Tiles      a warp multiplies 16 rows x 128 columns of the weight (A, decoded in registers) with
//            8 or 16 rows of x (B, in registers)
// Roles      8 warps, by K and by rows (kbit_stream_plan.h). Each streams its own part of the
//            weight through a ring of its own, so warps meet only where their sums are added
// Before the wait for the previous kernel: the first slots, the table, the first scales
// Smem       the table 64 KB, rings, sums: two CTAs on an SM, so that one works while another
//            begins or ends

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/multiply.cuh"
#include "dsv4/ops/gemm/cuda/store_at.cuh"

namespace dsv4::gemm::kbit_stream {

// C fragments: token 2 c (+ 1) of eight, row g (+ 8) of a tile.
template <int K, int kTokens>
__device__ void keep_sums(const Memory<K, kTokens>& memory, const Share& share,
                          const Sums<kTokens>& sums) {
#pragma unroll
  for (int i = 0; i < max_group_tiles(kTokens); ++i)
#pragma unroll
    for (int s = 0; s < kTokens / 8; ++s)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        memory.sums(share.warp, s * 8 + share.lane % 4 * 2 +
                                    j % 2)[i * kTileRows + share.lane / 4 + j / 2 * 8] =
            sums[i][s][j];
}

// By all threads: adds the shares of K in order. factor: of the sums
template <int K, int kTokens>
__device__ void store_round(const Params& p, const Memory<K, kTokens>& memory, const Share& share,
                            int round, int first_token, float factor) {
  const Plan& plan = p.plan;
  const int group_rows = plan.group_tiles * kTileRows, rows = plan.row_groups() * group_rows;
  const int first = share.tile(plan, round, 0) * kTileRows;
  const int end = min(p.n, share.end_tile * kTileRows) - first;
  const int tokens = min(kTokens, p.tokens - first_token);
  for (int i = static_cast<int>(threadIdx.x); i < rows * tokens; i += kThreads) {
    const int row = i % rows, token = i / rows;
    if (row >= end) continue;
    float sum = 0;
    for (int k = 0; k < plan.k_groups; ++k)
      sum += memory.sums(row / group_rows * plan.k_groups + k, token)[row % group_rows];
    cuda::store_at(p.out, p.out_dtype, (first_token + token) * p.out_stride + first + row,
                   sum * factor);
  }
}

// grid: CTAs of the weight, then tiles of x
template <int K, class X, int kTokens, bool kWhole>
__global__ void __launch_bounds__(kThreads, kCtasOfSm)
    kbit_stream_kernel(const __grid_constant__ Params params) {
  using Lookup = KbitLookup<K, X>;
  static_assert(Lookup::kTableBytes == Memory<K, kTokens>::kAt.ring);
  ptx::griddepcontrol_launch_dependents();
  const Plan& plan = params.plan;
  const Memory<K, kTokens> memory;
  const Share share(plan, static_cast<int>(blockIdx.x));
  Ring<K, kWhole> ring(params, share, memory.ring(share.warp));
  ring.fill();
  Scales<max_group_tiles(kTokens), kWhole> scales;
  const auto start_scales = [&](int round) {
    scales.start(params, share.tiles(plan, round),
                 share.tile(plan, round, share.row_group) * kTileRows + share.lane / 4,
                 share.first_unit * (kUnit / kBlock) + share.lane % 4);
  };
  start_scales(0);
  const float factor = Lookup::fill_book(params.codebook, memory.book()) * params.scale2;
  __syncthreads();
  Lookup::fill(memory.book(), memory.table(), kThreads);
  ptx::griddepcontrol_wait();
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  XBlocks<kTokens> x;  // of the first unit, for 8 tokens
  if constexpr (kTokens == 8) x.load(params, share, first_token, share.first_unit);
  __syncthreads();
  for (int round = 0; round < plan.rounds; ++round) {
    Sums<kTokens> sums;
    multiply<K, X, kTokens, kWhole>(params, share, round, first_token, memory.ring(share.warp),
                                    memory.table(), ring, scales, x, sums);
    if (round + 1 < plan.rounds) start_scales(round + 1);
    if (round > 0) __syncthreads();  // the sums of the round before are read
    keep_sums<K, kTokens>(memory, share, sums);
    __syncthreads();
    store_round<K, kTokens>(params, memory, share, round, first_token, factor);
  }
}

}  // namespace dsv4::gemm::kbit_stream
