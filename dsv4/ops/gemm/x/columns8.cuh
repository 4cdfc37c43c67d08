// Eight columns of activations in bf16, which a lane has; 16 lanes have a group of 128 columns, and
// make Q8 of it (formats/quant_group.h).

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/formats/quant_group.h"

namespace dsv4::gemm {

inline constexpr int kRun = 8, kRuns = 128 / kRun;  // columns of a lane; lanes of a group

// Columns of a lane in bf16. As words: single halves of them would cost a permutation each.
struct alignas(16) Run {
  uint32_t word[kRun / 2];

  __device__ static Run load(const bf16* from) { return *reinterpret_cast<const Run*>(from); }
  __device__ void store(bf16* to) const { *reinterpret_cast<Run*>(to) = *this; }
  __device__ static Run rounded(const float (&v)[kRun]) {
    Run run;
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) run.word[i] = ptx::pack_bf16x2(v[2 * i], v[2 * i + 1]);
    return run;
  }
  __device__ void widen(float (&v)[kRun]) const {
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      v[2 * i] = __uint_as_float(word[i] << 16);
      v[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000);
    }
  }
};

// The sum over the 16 lanes of a group.
__device__ inline float sum_of_group(float x) {
#pragma unroll
  for (int step = kRuns / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ inline float group_square(const Run& x) {
  float v[kRun], sum = 0;
  x.widen(v);
#pragma unroll
  for (const float value : v) sum = __fmaf_rn(value, value, sum);
  return sum_of_group(sum);
}
// Q8 of a group (formats/quant_group.h): the codes of a lane, and the scale.
struct CodesOfRun {
  uint2 codes;
  uint8_t scale;

  // 16 lanes call this together.
  __device__ explicit CodesOfRun(const Run& x) {
    float v[kRun], largest = 0;
    x.widen(v);
#pragma unroll
    for (const float value : v) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int step = kRuns / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    scale = q8_scale(largest);
    const float inverse = inverse_scale(scale);
    uint32_t pairs[kRun / 2];
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i) {
      const float2 pair{v[2 * i] * inverse, v[2 * i + 1] * inverse};
      pairs[i] = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    }
    codes = {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
  }
};

}  // namespace dsv4::gemm
