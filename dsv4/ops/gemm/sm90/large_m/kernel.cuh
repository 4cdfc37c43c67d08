// Products of many tokens on Hopper, with the bits that small_m gives a token.
//
// Problem    out[t, n] = sum_k x[t, k] * w[n, k]: FP8 blocks x E4M3 codes with a scale for each 128
//            columns, BF16 x bf16, and FP8 blocks x f16 with such scales (wo_a). Sums are rounded
//            where they are stored, in f32, bf16 or Q8 of bf16
// Bound      the tensor cores: 4 (FP8) or 8 (16 bits) clocks for a column of a tile; 192 bytes a
//            column come from L2 to an SM
// Tiles      a CTA has 128 rows x 128 tokens and all of K, in slabs of 128 bytes of a row. Weights
//            are M, tokens N, as in small_m, whose instructions and operands these are
// Cluster    two CTAs with neighboring rows and the same tokens, of which each copies 64 to both
// Roles      warps 0 - 7: consumers, two warpgroups of 64 rows, one of which adds while the other
//            one's products run | warps 8 - 11: producers, a thread copies, every thread computes
//            the factor of a token for a slab
// Barriers   full[s]    1 or 128 + bytes  producers of this CTA, copies of both | consumers
//            empty[s]   16                consumer warps of both CTAs           | producers
//            named 1, 2 128               a consumer warpgroup, around its staging
//            named 3    256               consumers, around the staging of Q8
// Registers  240 of consumers (64 of a slab, 64 of a rank, 64 of a tile; 16 of weights in f16), 24
//            of producers
// Smem       five stages of 32 KB, or four of 48 KB (f16); 32 KB of staged sums
//
// Order of additions: instructions of a slab ascending, from zero; slabs of a rank ascending, in
// f32 times the factor; ranks ascending. Ranks are those of plan.h, which follow from the shape. A
// CTA computes all ranks of a tile one after the other, so nothing is exchanged, and an output is
// written once. A token's bits depend neither on the others nor on how many there are.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/sm90/large_m/consumer.cuh"
#include "dsv4/ops/gemm/sm90/large_m/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/large_m/producer.cuh"

namespace dsv4::gemm::large_m {

template <class C>
__device__ void initialize(Shared<C>& shared) {
  if (threadIdx.x == 0) {
    for (ptx::Mbarrier& b : shared.full) b.init(C::kScaled ? sm90::kWarpgroup : 1);
    for (ptx::Mbarrier& b : shared.empty) b.init(kCtas * kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
}

// grid: clusters of kCtas, of which as many as fit run together. C: Config; Epilogue: StoreSums or
// StoreQ8.
template <class C, class Epilogue>
__global__ void __launch_bounds__(kThreads, 1) large_m_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  static_assert(sizeof(Shared<C>) <= sm90::kMaxSmem);
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<Shared<C>*>(ptx::dynamic_smem());
  initialize(shared);
  // The shuffle shows the compiler that a warp has one role.
  if (__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarp, 0) >= kConsumerWarps) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    Producer<C>(p, shared).run();
  } else {
    ptx::setmaxnreg_inc<sm90::consumer_registers(kProducerRegisters)>();
    ptx::griddepcontrol_wait();
    Consumer<C> consumer(p, shared);
    visit_tiles(p, [&](const Tile& tile) {
      float sums[kSums];
      consumer.multiply(sums);
      Epilogue::run(p, shared, tile, sums);
    });
  }
  // The other CTA's last arrivals and copies need this one's shared memory.
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

}  // namespace dsv4::gemm::large_m
