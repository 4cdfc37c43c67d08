// The group quantizers of formats/quant_group.h, by a warp or some lanes of it: every code and
// scale has the bits of the scalar definition.

#pragma once

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

}  // namespace dsv4
