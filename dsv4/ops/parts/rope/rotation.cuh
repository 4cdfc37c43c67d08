// The rotation of one pair (rope.h), for kernels that rotate.

#pragma once

#include <cmath>

#include "dsv4/device/math.cuh"

namespace dsv4 {

// cos and sin. The angle is an f32; both are computed in f64, where the range reduction is exact at
// any angle, and rounded once.
__device__ inline float2 rotation_of(float position, float freq, bool inverse) {
  double sine, cosine;
  sincos(static_cast<double>(__fmul_rn(position, freq)), &sine, &cosine);
  return {static_cast<float>(cosine), static_cast<float>(inverse ? -sine : sine)};
}

__device__ inline float2 rotate(float2 pair, float2 rotation) {
  return {__fmaf_rn(pair.x, rotation.x, -__fmul_rn(pair.y, rotation.y)),
          __fmaf_rn(pair.x, rotation.y, __fmul_rn(pair.y, rotation.x))};
}

}  // namespace dsv4
