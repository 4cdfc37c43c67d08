// The group quantizers of formats/quant_group.h, by a warp or some lanes of it: every code and
// scale has the bits of the scalar definition.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/pack.cuh"
#include "dsv4/formats/quant_group.h"

namespace dsv4 {

// The lanes that share a group: `count` neighbors of a warp, a power of two. All lanes of the warp
// call together.
struct GroupLanes {
  int count = kWarp;

  __device__ int own() const { return static_cast<int>(threadIdx.x) % count; }
};

// x * inverse of a finite scale, with the sign of x also where x is NaN: arithmetic of the GPU
// makes one NaN of all.
__device__ inline float scaled_for_code(float x, float inverse) {
  return copysignf(x * inverse, x);
}

// Largest magnitude of a group; NaN has no say. Runs of kRun elements; n is a multiple of it.
template <int kRun, class T>
__device__ float group_absmax(GroupLanes lanes, const T* x, int n) {
  float largest = 0;
  for (int i = lanes.own() * kRun; i < n; i += lanes.count * kRun) {
    float v[kRun];
    load<kRun>(x + i, v);
#pragma unroll
    for (int j = 0; j < kRun; ++j) largest = fmaxf(largest, fabsf(v[j]));
  }
  for (int step = lanes.count / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  return largest;
}

// Q8 of x: [n]. The codes go to codes: [n], which is aligned to kRun; every lane returns the scale.
template <int kRun, class T>
__device__ uint8_t group_quantize_q8(GroupLanes lanes, const T* x, int n, uint8_t* codes) {
  const uint8_t scale = q8_scale(group_absmax<kRun>(lanes, x, n));
  const float inverse = inverse_scale(scale);
  for (int i = lanes.own() * kRun; i < n; i += lanes.count * kRun) {
    float v[kRun];
    load<kRun>(x + i, v);
    Pack<uint8_t, kRun> pack;
#pragma unroll
    for (int j = 0; j < kRun; ++j) pack.value[j] = f32_to_e4m3(scaled_for_code(v[j], inverse));
    *reinterpret_cast<Pack<uint8_t, kRun>*>(codes + i) = pack;
  }
  return scale;
}

// Q8 of a group whose values are in registers: each lane of a warp has kValues neighbors. codes: of
// the lane's first value, aligned to kValues bytes; scale: of the group. A code of NaN has any
// sign.
template <int kValues>
__device__ inline void warp_quantize_q8(const float (&values)[kValues], uint8_t* codes,
                                        uint8_t* scale) {
  float largest = 0;
#pragma unroll
  for (const float value : values) largest = fmaxf(largest, fabsf(value));
  const uint8_t exponent = q8_scale(warp_max(largest));
  const float inverse = inverse_scale(exponent);
  Pack<__nv_fp8x2_storage_t, kValues / 2> packed;
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i)
    packed.value[i] = __nv_cvt_float2_to_fp8x2(
        {values[2 * i] * inverse, values[2 * i + 1] * inverse}, __NV_SATFINITE, __NV_E4M3);
  *reinterpret_cast<decltype(packed)*>(codes) = packed;
  if (threadIdx.x % kWarp == 0) *scale = exponent;
}

}  // namespace dsv4
