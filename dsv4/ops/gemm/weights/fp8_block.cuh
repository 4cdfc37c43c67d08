// A block scale of an FP8 weight on its way from memory: requested before the wait for the previous
// kernel, used after it. A conversion where it is requested would stop the thread there.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

class PendingScale {
 public:
  PendingScale() = default;
  // scales: f32, else E8M0
  __device__ PendingScale(const void* scales, bool is_f32, int64_t i)
      : bits_(is_f32 ? static_cast<const uint32_t*>(scales)[i]
                     : static_cast<const uint8_t*>(scales)[i]),
        is_f32_(is_f32) {}

  // Waits until it has arrived.
  __device__ float value() const {
    const uint32_t bits = ptx::opaque(bits_);
    return is_f32_ ? __uint_as_float(bits) : ue8m0_to_f32(static_cast<uint8_t>(bits));
  }

 private:
  uint32_t bits_ = 0;
  bool is_f32_ = false;
};

// The scale of the 128 x 128 block of an FP8 weight that has `row` and the columns of `slab`.
__device__ inline PendingScale block_scale(const Matrix& matrix, int row, int slab) {
  return {matrix.scale, matrix.scale_is_f32, row / kScaleColumns * matrix.scale_stride + slab};
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

}  // namespace dsv4::gemm
