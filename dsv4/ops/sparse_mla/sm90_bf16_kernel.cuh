// The kernel of sm90_bf16.cu.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_bf16_attend.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_gather.cuh"

namespace dsv4::sm90_bf16 {

// Blocks walk over items blockIdx.x, + gridDim.x, ...
template <int kPieces, class Out>
__global__ void __launch_bounds__(kThreads, 1) attend_kernel(const __grid_constant__ Inputs in) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kPieces>*>(memory);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x >= 2 * kGroup) {
    ptx::lower_registers<72>();
    produce(in, shared);
  } else {
    ptx::raise_registers<216>();
    consume<kPieces, Out>(in, shared);
  }
#endif
}

}  // namespace dsv4::sm90_bf16
