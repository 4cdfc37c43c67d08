// The Hopper kernel (config.cuh): roles by warp.

#pragma once

#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/xattn/attention/sm90/consumer.cuh"
#include "dsv4/ops/xattn/attention/sm90/loader.cuh"
#include "dsv4/ops/xattn/attention/sm90/scheduler.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

template <class C>
__global__ void __launch_bounds__(kThreads, 1)
    attend_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& shared = *reinterpret_cast<Shared<C>*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x < kGroup) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < kWarp) {
      Loader<C>(params, shared).run();
    } else if (threadIdx.x < 2 * kWarp) {
      Scheduler<C>(params, shared).run();
    }
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<C>(params, shared).run();
  }
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
