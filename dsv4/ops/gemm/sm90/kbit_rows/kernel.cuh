// The kernel of kbit_rows.h.
//
// Problem    out[t, n] = sum_k x[t, k] codebook[code[n, k]] scale[n, k / 32] scale2, for up to 64
//            rows of x. Operands are bf16 or f16, sums f32; weights are rounded twice
//            (weights/kbit_lookup.cuh)
// Bound      reading the weight, if two or more bytes of look-ups a weight fit into the same time:
//            128 bytes of shared memory a clock and SM
// Tiles      a warpgroup has 64 rows of the weight as A (registers), up to 32 rows of x are B
//            (shared memory, x_cells.cuh); units of 128 columns. Up to 8 rows of x are multiplied
//            by mma.sync, more by wgmma
// Roles      4 warpgroups, by rows and by K (kbit_rows_plan.h). The first thread of each copies its
//            ring
// Barriers   name | count | arrived by | waited by
//            full[group][stage]  | 1 + bytes | the group's first thread, copies | the group
//            empty[group][stage] | 4         | a lane of each of its warps      | its first thread
//            rounds end with a barrier of the CTA or of the cluster, before and after their sums
//            are added
// Registers  128 at most: 2 x N / 2 sums, 32 of A, codes of two blocks. 64 for up to 8 rows of x
//            with K < 5, so that a CTA of the next kernel fits on an SM, makes its table and fills
//            its rings
// Smem       the table 16 or 32 KB (K = 5: 64 or 128), x, rings

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/multiply.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/multiply_few.cuh"

namespace dsv4::gemm::kbit_rows {

// Scales of all rounds to L2: loads of single bytes then wait less. A rank has a part of the rows.
__device__ inline void prefetch_scales(const Params& p, const Share& share) {
  const Plan& plan = p.plan;
  const bool dense = p.scale_stride == p.k / 32;
  if (!dense || p.k % 512 != 0 || reinterpret_cast<uintptr_t>(p.scale) % 16 != 0) return;
  for (int round = 0; round < plan.rounds; ++round) {
    const int first = share.first_row(plan, round, 0);
    const int rows = share.first_row(plan, round, plan.row_groups) - first;
    const int from = first + (rows * share.rank >> plan.ranks / 2);
    const int to = first + (rows * (share.rank + 1) >> plan.ranks / 2);
    if (from < to)
      ptx::cp_async_bulk_prefetch_l2(p.scale + from * p.scale_stride,
                                     static_cast<uint32_t>((to - from) * p.scale_stride));
  }
}

// Computed anew where it is needed, so that it takes no registers in between.
__device__ inline Share share_of_thread(const Plan& plan) {
  return Share(plan, static_cast<int>(ptx::opaque(threadIdx.x)) / kGroupThreads,
               static_cast<int>(blockIdx.x));
}

template <class Lookup>
__device__ void fill_table(const Params& p, const Memory& memory) {
  float unit;
  const uint32_t book = Lookup::load_book(p.codebook, unit);
  if (threadIdx.x == 0) memory.unit() = unit;
  Lookup::fill(book, memory.table(), kThreads);
}

__device__ inline void start_scales(const Params& p, Scales& scales, int round) {
  const Plan& plan = p.plan;
  const Share share = share_of_thread(plan);
  const int thread = static_cast<int>(ptx::opaque(threadIdx.x)) % kGroupThreads;
  const int warp_row = thread / kWarp * 16;
  const int row = share.first_row(plan, round, share.row_group) + warp_row % plan.sums_rows() +
                  thread % kWarp / 4;
  scales.start(p, {row, row + 8},
               share.first_stage * plan.stage_units + warp_row / plan.sums_rows(),
               plan.warps_of_rows());
}

static __device__ long long kbit_times[264 * 4 * 8];
__device__ inline void note(int slot, long long value) {
  if (threadIdx.x % kGroupThreads == 0 && blockIdx.x < 264)
    kbit_times[(blockIdx.x * 4 + threadIdx.x / kGroupThreads) * 8 + slot] = value;
}
__device__ inline long long now_ns() {
  long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// grid: clusters x ranks, then tiles of x
// kCells: rows of x of a CTA
template <int K, class X, int kCells>
__global__ void __launch_bounds__(kThreads, ctas_of_sm(K, kCells))
    kbit_rows_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int N = columns_of(kCells);
  constexpr bool kFew = kCells <= kFewCells;
  using Lookup = KbitLookup<K, X, table_copies(kCells)>;
  static_assert(Lookup::kTableBytes == table_bytes(K, kCells));
  note(0, now_ns());
  note(1, clock64());
  ptx::griddepcontrol_launch_dependents();
  const Plan& plan = params.plan;
  const Memory memory(K, plan);
  Ring<K> ring(params, memory, share_of_thread(plan));
  if (threadIdx.x % kGroupThreads == 0) ring.start(share_of_thread(plan));
  if (threadIdx.x == kWarp) prefetch_scales(params, share_of_thread(plan));
  fill_table<Lookup>(params, memory);
  Scales scales;
  start_scales(params, scales, 0);

  note(2, clock64());
  ptx::griddepcontrol_wait();
  note(3, clock64());
  stage_x<kCells>(params, share_of_thread(plan), memory);
  if constexpr (!kFew) ptx::fence_proxy_async();
  __syncthreads();
  note(4, clock64());
  for (int round = 0; round < plan.rounds; ++round) {
    Sums<N> sums;
    if constexpr (kFew) {
      multiply_few<K, X, kCells>(params, memory, share_of_thread(plan), ring, scales, sums);
    } else {
      multiply_together<K, X, kCells>(params, memory, share_of_thread(plan), ring, scales, sums);
    }
    note(5, clock64());
    if (round + 1 < plan.rounds) start_scales(params, scales, round + 1);
    keep_sums<N>(plan, memory, share_of_thread(plan), sums);
    sync_ranks(plan);
    store_round<kCells>(params, memory, share_of_thread(plan), round);
    sync_ranks(plan);
  }
  note(6, clock64());
  note(7, now_ns());
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

}  // namespace dsv4::gemm::kbit_rows
