// Conversions and approximations of single threads that CUDA has no function for.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// 2^x with at most 2 ulps of f32 error; subnormal results are flushed to 0.
__device__ inline float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Converts four e4m3 codes to two pairs of f16 (exact). `low` is the result of the low half of
// `codes`.
__device__ inline void cvt_e4m3x4_to_f16x2(uint32_t codes, uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
}

// Converts four e4m3 codes to two pairs of f16 (exact) and multiplies each with a pair of f16
// scales. `low` is the result of the low half of `codes`.
__device__ inline void cvt_e4m3x4_to_f16x2_scaled(uint32_t codes, uint32_t low_scale,
                                                  uint32_t high_scale, uint32_t& low,
                                                  uint32_t& high) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      ".reg .b32 a, b;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 a, l;\n"
      "cvt.rn.f16x2.e4m3x2 b, h;\n"
      "mul.rn.f16x2 %0, a, %3;\n"
      "mul.rn.f16x2 %1, b, %4;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(codes), "r"(low_scale), "r"(high_scale));
}

}  // namespace dsv4::ptx
