// The product of a slab: part [64, kTokens] = weights [64, slab] * x [slab, kTokens], by wgmma.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/few_gemm/config.cuh"

namespace dsv4::few_gemm {

// Two e4m3 codes (the low half of `codes`) as bf16, exactly: the bits of a code are those of a bf16
// number whose exponent is 120 too small, subnormals included. The codes of NaN count as 480.
__device__ inline uint32_t e4m3x2_to_bf16x2(uint32_t codes) {
  constexpr uint32_t kSigns = 0x80008000, kRest = 0x07f007f0, kTwoTo120 = 0x7b807b80;
  const uint32_t spread = __byte_perm(codes, 0, 0x1404);  // each code in the high byte of its half
  const uint32_t small = (spread & kSigns) | (spread >> 4 & kRest);
  return ptx::as_bits(__hmul2(ptx::as_bf162(small), ptx::as_bf162(kTwoTo120)));
}

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

// Weights are codes in shared memory, converted into A registers: of 16 columns, row g and g + 8 of
// the warp's 16 rows, columns 2j, 2j + 1 and 2j + 8, 2j + 9 (mma.cuh).
template <int kTokens>
__device__ void multiply_converted(float (&part)[kTokens / 2], const unsigned char* weights,
                                   uint32_t x, int thread) {
  constexpr int kSteps = kSlabBytes / 16;
  const int g = thread % kWarp / 4, j = thread % 4;
  const unsigned char* row = weights + (thread / kWarp * 16 + g) * kSlabBytes + 2 * j;
  uint32_t a[kSteps][4];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const unsigned char* chunk = row + ((i ^ g) << 4);  // the 128-byte swizzle; g is the row % 8
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      a[i][r] = *reinterpret_cast<const uint16_t*>(chunk + r % 2 * 8 * kSlabBytes + r / 2 * 8);
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (uint32_t& codes : a[i]) codes = e4m3x2_to_bf16x2(codes);
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint64_t b = ptx::make_smem_desc_128B(x + i / 4 * kTokens * kSlabBytes);
    ptx::Wgmma<bf16, kTokens>::run(part, a[i], ptx::advance_desc(b, i % 4 * 32), i > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_fence_operand(part);
}

}  // namespace dsv4::few_gemm
