// The product of a slab: part [64, kTokens] = weights [64, slab] * x [slab, kTokens], by wgmma.

#pragma once

#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

// Both operands in shared memory.
template <class T, int kTokens>
__device__ void multiply_shared(float (&part)[kTokens / 2], uint32_t weights, uint32_t x) {
  const uint64_t a = ptx::make_smem_desc_128B(weights), b = ptx::make_smem_desc_128B(x);
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSlabBytes / 32; ++i) {
    ptx::Wgmma<T, kTokens>::run(part, ptx::advance_desc(a, i * 32), ptx::advance_desc(b, i * 32),
                                i > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_fence_operand(part);
}

}  // namespace dsv4::gemm
