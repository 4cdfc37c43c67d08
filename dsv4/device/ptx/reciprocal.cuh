// Approximate reciprocals and roots, in one instruction where IEEE's take some 50.

#pragma once

namespace dsv4::ptx {

// 1 / x within an ulp; subnormal x counts as 0, whose reciprocal is infinite.
__device__ inline float rcp_approx_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / sqrt(x), relative error at most 2^-22.9; subnormal x as above.
__device__ inline float rsqrt_approx_ftz(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace dsv4::ptx
