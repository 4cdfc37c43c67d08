// Scale bytes of kernel images (formats/kbit_image.h) as f32: E4M4 of k-bit weights, UE8M0 of
// MXFP4, E4M3 of NVFP4.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/kbit_image.h"

namespace dsv4::gemm {

// The exponent of an f32, from a byte that was shifted to bit 23. Byte 0 is the subnormal 2^-127;
// 255, which would be infinite, becomes NaN.
__device__ inline float ue8m0_scale(uint32_t shifted) {
  const float scale = __uint_as_float(max(shifted & 0x7f800000u, 0x400000u));
  return fmaf(scale, 0.f, scale);
}

// The scales of a block of rows g and g + 8; of E4M4 a sixteenth. bytes: in the lower half
template <ImageScale kScale>
__device__ inline float2 image_scales(uint32_t bytes) {
  if constexpr (kScale == ImageScale::kUe8m0) {
    return {ue8m0_scale(bytes << 23), ue8m0_scale(bytes << 15)};
  } else if constexpr (kScale == ImageScale::kE4M3) {
    return __half22float2(
        __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes), __NV_E4M3)));
  } else {
    const uint32_t halves = ptx::prmt(bytes, 0, 0x4140) << 6;
    return __half22float2(reinterpret_cast<const __half2&>(halves));
  }
}

}  // namespace dsv4::gemm
