// Approximate reciprocals.

#pragma once

namespace dsv4::ptx {

// 1 / x within an ulp, in one instruction; subnormal x counts as 0, whose reciprocal is infinite.
__device__ inline float rcp_approx_ftz(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace dsv4::ptx
