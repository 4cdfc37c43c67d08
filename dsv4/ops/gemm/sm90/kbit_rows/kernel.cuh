// The kernel of kbit_rows.h.
//
// Problem    out[t, n] = sum_k x[t, k] codebook[code[n, k]] scale[n, k / 32] scale2, for up to 64
//            rows of x. Operands are bf16 or f16, sums f32; weights are rounded twice
//            (weights/kbit_lookup.cuh)
// Bound      reading the weight, if two or more bytes of look-ups a weight fit into the same time:
//            128 bytes of shared memory a clock and SM
// Tiles      a warpgroup has 64 rows of the weight as A (registers), up to 32 rows of x are B
//            (shared memory, columns in the order of x_cells.cuh); units of 128 columns
// Roles      4 warpgroups, by rows and by K (kbit_rows_plan.h). The first thread of each copies its
//            ring
// Barriers   name | count | arrived by | waited by
//            full[group][stage]  | 1 + bytes | the group's first thread, copies | the group
//            empty[group][stage] | 128       | the group                        | its first thread
//            rounds end with a barrier of the CTA or of the cluster, before and after their sums
//            are added
// Registers  128 at most: 2 x N / 2 sums, 32 of A, codes of two blocks
// Smem       the table 64 or 128 KB, x, rings

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/epilogue.cuh"

namespace dsv4::gemm::kbit_rows {

// Scales of all rounds to L2: loads of single bytes then wait less. A rank has a part of the rows.
__device__ inline void prefetch_scales(const Params& p, const Share& share) {
  const Plan& plan = p.plan;
  const bool dense = p.scale_stride == p.k / 32;
  if (!dense || p.k % 512 != 0 || reinterpret_cast<uintptr_t>(p.scale) % 16 != 0) return;
  const int rows = plan.row_groups * plan.rows;
  for (int round = 0; round < plan.rounds; ++round) {
    const int first = share.first_row(plan, round, 0);
    const int from = min(p.n, first + rows * share.rank / plan.ranks);
    const int to = min(p.n, first + rows * (share.rank + 1) / plan.ranks);
    if (from < to)
      ptx::cp_async_bulk_prefetch_l2(p.scale + from * p.scale_stride,
                                     static_cast<uint32_t>((to - from) * p.scale_stride));
  }
}

// grid: clusters x ranks, then tiles of x
// kCells: rows of x of a CTA
template <int K, class X, int kCells>
__global__ void __launch_bounds__(kThreads, 1)
    kbit_rows_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int N = columns_of(kCells);
  using Lookup = KbitLookup<K, X, table_copies(kCells)>;
  static_assert(Lookup::kTableBytes == table_bytes(K, kCells));
  ptx::griddepcontrol_launch_dependents();
  const Plan& plan = params.plan;
  const Memory memory(K, plan);
  const Share share(plan, static_cast<int>(threadIdx.x) / kGroupThreads,
                    static_cast<int>(blockIdx.x));
  Ring<K> ring(params, memory, share);
  if (threadIdx.x % kGroupThreads == 0) {
    ring.init();
    ptx::fence_mbarrier_init();
  }
  const float unit = Lookup::fill_book(params.codebook, memory.book());
  __syncthreads();
  ring.fill();
  Lookup::fill(memory.book(), memory.table(), kThreads);
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int local = thread / kWarp * 16 + thread % kWarp / 4;
  const int first_unit = share.first_stage * plan.stage_units;
  Scales scales;
  const auto start_scales = [&](int round) {
    const int row = share.first_row(plan, round, share.row_group) + local;
    scales.start(params, {row, row + 8}, first_unit);
  };
  start_scales(0);
  if (threadIdx.x == 0) prefetch_scales(params, share);

  const int first_token = static_cast<int>(blockIdx.y) * kCells;
  const int tokens = min(kCells, params.tokens - first_token);
  ptx::griddepcontrol_wait();
  stage_x<kCells>(params, share, memory, first_token, tokens);
  ptx::fence_proxy_async();
  __syncthreads();
  for (int round = 0; round < plan.rounds; ++round) {
    Sums<N> sums;
    multiply<K, X, kCells>(params, memory, share, ring, scales, sums);
    if (round + 1 < plan.rounds) start_scales(round + 1);
    keep_sums<N>(plan, memory, share, sums);
    sync_ranks(plan);
    store_round(params, memory, share, round, first_token, tokens, unit);
    sync_ranks(plan);
  }
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

}  // namespace dsv4::gemm::kbit_rows
