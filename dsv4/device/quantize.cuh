// The group quantisers of formats/quant_group.h by one warp: every code and scale has the bits of
// the scalar definition.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/formats/quant_group.h"

namespace dsv4 {

// x * inverse of a finite scale, with the sign of x also where x is NaN: arithmetic of the GPU
// makes one NaN of all.
__device__ inline float scaled_for_code(float x, float inverse) {
  return copysignf(x * inverse, x);
}

// Largest magnitude of a group; NaN has no say. Runs of kRun elements; n is a multiple of it.
template <int kRun, class T>
__device__ float warp_absmax(const T* x, int n) {
  float largest = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp * kRun; i < n; i += kWarp * kRun) {
    float v[kRun];
    load<kRun>(x + i, v);
#pragma unroll
    for (int j = 0; j < kRun; ++j) largest = fmaxf(largest, fabsf(v[j]));
  }
  return warp_max(largest);
}

// Q8 of x: [n]. The codes go to codes: [n], which has the alignment of x; every lane returns the
// scale.
template <int kRun, class T>
__device__ uint8_t warp_quantize_q8(const T* x, int n, uint8_t* codes) {
  const uint8_t scale = q8_scale(warp_absmax<kRun>(x, n));
  const float inverse = inverse_scale(scale);
  for (int i = static_cast<int>(threadIdx.x) % kWarp * kRun; i < n; i += kWarp * kRun) {
    float v[kRun];
    load<kRun>(x + i, v);
    Pack<uint8_t, kRun> pack;
#pragma unroll
    for (int j = 0; j < kRun; ++j) pack.value[j] = f32_to_e4m3(scaled_for_code(v[j], inverse));
    *reinterpret_cast<Pack<uint8_t, kRun>*>(codes + i) = pack;
  }
  return scale;
}

}  // namespace dsv4
