// Clamped SwiGLU of one element (docs/spec/dsv4.md 7.3).

#pragma once

namespace dsv4 {

// weight * (silu(min(gate, limit)) * clamp(up, -limit, limit)); comparisons, not fminf, keep NaN
__device__ inline float swiglu(float gate, float up, float weight, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  const float e = expf(-fabsf(gate));  // never overflows
  const float silu = (gate < 0 ? gate * e : gate) / (1.f + e);
  return weight * (silu * up);
}

}  // namespace dsv4
