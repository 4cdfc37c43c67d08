// q or k to e4m3: nearest even, saturating; NaN stays NaN.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/math.cuh"

namespace dsv4::xattn_scores_kernel::sm90_fp8 {

inline constexpr int kThreads = 256, kPer = 8;  // values of a thread

// from [rows, width], `stride` values from row to row, to packed rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const T* from, int64_t stride, int64_t rows, int width, __nv_fp8_e4m3* to) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPer;
  if (i >= rows * width) return;
  const int64_t row = i / width;
  const uint4 loaded = *reinterpret_cast<const uint4*>(from + row * stride + (i - row * width));
  const T* values = reinterpret_cast<const T*>(&loaded);
  __nv_fp8_e4m3 codes[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) codes[j] = __nv_fp8_e4m3(to_float(values[j]));
  *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(codes);
}

}  // namespace dsv4::xattn_scores_kernel::sm90_fp8
