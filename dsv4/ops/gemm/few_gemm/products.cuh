// The product of a slab: part [64, kTokens] = weights [64, slab] * x [slab, kTokens], by wgmma.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/few_gemm/config.cuh"

namespace dsv4::few_gemm {

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

// Weights are codes in shared memory, converted to f16 in A registers; x is f16 in the order of
// columns that this leaves (f16_position()): a lane has the columns 4j .. 4j + 3 of every 16.
template <int kTokens>
__device__ void multiply_converted(float (&part)[kTokens / 2], uint32_t weights, uint32_t x,
                                   int thread) {
  constexpr int kSteps = kSlabBytes / 16;
  const int lane = thread % kWarp, row = lane % 16;  // of the warp's rows
  const uint32_t rows = weights + (thread / kWarp * 16 + row) * kSlabBytes;
  uint32_t a[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps; i += 2) {
    uint32_t codes[4];  // rows g and g + 8 of 16 columns, then of the next 16
    ptx::ldmatrix_x4(codes, rows + (((i + lane / 16) ^ (row % 8)) << 4));
#pragma unroll
    for (int r = 0; r < 4; ++r)
      ptx::cvt_e4m3x4_to_f16x2(codes[r], a[i + r / 2][r % 2], a[i + r / 2][r % 2 + 2]);
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t b = ptx::make_smem_desc_128B(x + i / 4 * kTokens * kSlabBytes);
    ptx::Wgmma<f16, kTokens>::run(part, a[i], ptx::advance_desc(b, i % 4 * 32), i > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_fence_operand(part);
}

}  // namespace dsv4::few_gemm
