// Clamped SwiGLU of one element (docs/spec/dsv4.md 7.3), and the same with other activations.

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

// v (1 + erf(v / sqrt(2))) / 2; erfc keeps the relative accuracy of negative v
__device__ inline float gelu(float v) {
  return 0.5f * v * erfcf(-0.70710678f * v);
}
// v (1 + tanh(y)) / 2 with y = sqrt(2 / pi) (v + 0.044715 v^3), as v / (1 + e^(-2 y))
__device__ inline float gelu_tanh(float v) {
  const float twice = 1.5957691f * v * (1.f + 0.044715f * v * v);
  return v / (1.f + expf(-twice));
}

// weight * (a(min(gate, limit)) * clamp(up, -limit, limit)) with one of the two as a
__device__ inline float gelu_gated(bool tanh, float gate, float up, float weight, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return weight * ((tanh ? gelu_tanh(gate) : gelu(gate)) * up);
}

// The step after gate and up of any model. Step: gemm::GatedStep (gated_step.h)
template <class Step>
__device__ float gated(const Step& step, float gate, float up, float weight) {
  using Gate = decltype(step.gate);
  if (step.gate == Gate::kSilu) return swiglu(gate, up, weight, step.limit);
  return gelu_gated(step.gate == Gate::kGeluTanh, gate, up, weight, step.limit);
}

}  // namespace dsv4
