// The kernel of kbit_wide.h.
//
// Problem    out[t, n] = sum_k x[t, k] codebook[code[n, k]] scale[n, k / 32] scale2. Operands are
//            bf16 or f16, sums f32; weights are rounded twice (weights/kbit_lookup.cuh)
// Bound      in tiles of 256 x 128 the tensor cores. In smaller ones none alone: a warpgroup's
//            look-ups and products are one beside the other in part (docs/kernels/kbit.md)
// Tiles      128 or 256 rows of the weight (A, decoded in registers) x 32 to 128 rows of x (B, in
//            shared memory), sums in registers; a cluster has a tile, and each of its CTAs a share
//            of the columns
// Roles      two or four warpgroups of consumers: 64 rows each | a thread of the warps behind them
//            copies x, codes and scales
// Barriers   full[s]    1 + bytes  producer thread | consumers
//            empty[s]   8 or 16    consumer warps, a step after the unit | producer
//            exchanged  1 + bytes  ranks of the cluster, once | consumers
//            cluster               all threads, once: rings become the place of the exchange
//            named 1    256, 512   consumers, before they read each other's stores
// Registers  at most 224, with four warpgroups 112 of consumers and 32 of producers
// Smem       table 64 KB, 2 to 8 stages of 8 to 32 KB of x and 4 to 20 KB of codes
// Before the wait for the previous kernel, which is order_x.cuh: the first codes, the table
//
// Order of additions: k ascending within a share, groups of 16 by the tensor core; then the shares
// in order. The shape of the weight and the GPU decide the shares, and columns of a product do not
// see each other: a row of x has the same bits beside any others. They are not those of
// gemm/cuda/kbit_stream, whose shares are others.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/exchange.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/producer.cuh"

namespace dsv4::gemm::kbit_wide {

// By one thread.
template <class C>
__device__ void initialize(const Share& share, Shared<C>& shared) {
  for (ptx::Mbarrier& b : shared.full) b.init(1);
  for (ptx::Mbarrier& b : shared.empty) b.init(C::kConsumers / kWarp);
  shared.exchanged.init(1);
  ptx::fence_mbarrier_init();
  shared.exchanged.expect_tx(Exchange<C>::bytes(share));
  shared.exchanged.arrive();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    kbit_wide_kernel(const __grid_constant__ Params p) {
  using Lookup = typename C::Lookup;
  static_assert(sizeof(Shared<C>) <= sm90::kMaxSmem);
  auto& shared = *reinterpret_cast<Shared<C>*>(ptx::dynamic_smem());
  ptx::griddepcontrol_launch_dependents();
  const Share share = Share::of<C>(p);
  if (threadIdx.x == C::kConsumers) {
    initialize(share, shared);
    start_codes(p, share, shared);
  }
  const float unit = Lookup::fill_book(p.codebook, shared.book);
  if (threadIdx.x == 0) shared.factor = unit * p.scale2;
  __syncthreads();
  Lookup::fill(shared.book, shared.table, C::kThreads);
  __syncthreads();
  ptx::griddepcontrol_wait();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < C::kConsumers / kWarp) {
    if constexpr (C::kMovesRegisters) ptx::setmaxnreg_inc<kConsumerRegisters>();
    Sums<C> sums;
    multiply(share, shared, sums);
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();  // all have read their rings
    send<C>(share, sums, shared);
    store(p, share, shared);
  } else {
    if constexpr (C::kMovesRegisters) ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == C::kConsumers) produce(p, share, shared);
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

}  // namespace dsv4::gemm::kbit_wide
