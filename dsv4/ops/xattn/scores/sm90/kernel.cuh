// The Hopper kernel (config.cuh): roles by warpgroup.

#pragma once

#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/xattn/scores/sm90/consumer.cuh"
#include "dsv4/ops/xattn/scores/sm90/producer.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

template <class C>
__global__ void __launch_bounds__(kThreads, 1) score_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) shared.init(params.ctas);
  __syncthreads();
  const int cta = static_cast<int>(blockIdx.x), rank = cta % params.ctas;
  const int cluster = cta / params.ctas, clusters = static_cast<int>(gridDim.x) / params.ctas;
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (threadIdx.x < kGroup) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>(params, shared, rank).run(cluster, clusters);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<C>(params, shared, cta).run(cluster, clusters, rank);
  }
  __syncwarp();  // other CTAs arrive at this one's barriers to the end
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

}  // namespace dsv4::xattn_scores_kernel::sm90
