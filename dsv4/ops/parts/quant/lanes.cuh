// Steps of quant.h by the lanes of a warp, for kernels that do more than these.

#pragma once

#include "dsv4/device/quantize.cuh"

namespace dsv4 {

// One group of fake_quant(): the scale's code, and a scaled value as its code decodes.
struct S8 {
  static __device__ uint8_t scale(float largest) { return q8_scale(largest); }
  static __device__ float round(float x) { return e4m3_to_f32(f32_to_e4m3(x)); }
};
struct S4 {
  static __device__ uint8_t scale(float largest) { return q4_scale(largest); }
  // The code's bits are the upper bits of a float whose exponent is 126 too small, subnormals
  // included. The table of e2m1_to_f32() would be read from memory.
  static __device__ float round(float x) {
    const uint8_t code = f32_to_e2m1(x);
    const float magnitude = __uint_as_float((code & 7u) << 22) * 0x1p126f;
    return (code & 8u) != 0 ? -magnitude : magnitude;
  }
};

// The butterflies of hadamard(), without its factor, of a row of lanes * kPer elements: lane l has
// elements from l * kPer on. Distances are 1, 2, 4, .. as on the CPU, the same sums of the same
// terms, so the bits are the same. All lanes of the warp.
template <int kPer>
__device__ void hadamard_in_lanes(float (&v)[kPer], int lanes, int lane) {
#pragma unroll
  for (int step = 1; step < kPer; step *= 2) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      if ((j & step) != 0) continue;
      const float a = v[j], b = v[j + step];
      v[j] = a + b;
      v[j + step] = a - b;
    }
  }
  for (int step = 1; step < lanes; step *= 2) {
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const float other = __shfl_xor_sync(~0u, v[j], step);
      v[j] = (lane & step) != 0 ? other - v[j] : v[j] + other;
    }
  }
}

// S4 of hadamard() of a row, which has kWarp * kPer elements; the transform is rounded to bf16
// before S4. factor: of the transform; group: of S4, a multiple of kPer. All lanes of the warp.
template <int kPer>
__device__ void hadamard_s4_in_lanes(float (&v)[kPer], float factor, int group, int lane) {
  hadamard_in_lanes(v, kWarp, lane);
  float largest = 0;
#pragma unroll
  for (float& value : v) {
    value = to_float(from_float<bf16>(value * factor));
    largest = fmaxf(largest, fabsf(value));
  }
#pragma unroll
  for (int step = 1; step < group / kPer; step *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  const uint8_t code = S4::scale(largest);
  const float scale = ue8m0_to_f32(code), inverse = inverse_scale(code);
#pragma unroll
  for (float& value : v) value = S4::round(scaled_for_code(value, inverse)) * scale;
}

}  // namespace dsv4
