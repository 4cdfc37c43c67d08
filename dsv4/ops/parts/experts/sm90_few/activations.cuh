// The B operand of a math warp, in registers: Q8 of 256 columns of up to 8 pairs.
//
// Lane 4g + t holds columns 16 i + 2t, + 1, + 8 and + 9 of pair g, as the e4m3 codes in f16, which
// is exact. The groups of Q8 are the two halves of the 256 columns: four lanes have a group of a
// pair together.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/parts/experts/sm90_few/config.cuh"

namespace dsv4::experts_kernel::sm90_few {

inline constexpr int kQ8Group = 128, kGroups = kUnitColumns / kQ8Group;

struct Activations {
  uint32_t b[2 * kUnitColumns / 16];  // b0, b1 of each mma
  float scale[kGroups][2];            // of pairs 2t and 2t + 1, the columns of the accumulators
};

// Two values to e4m3 codes to f16.
__device__ inline uint32_t q8_pair(float low, float high) {
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(
      __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3), __NV_E4M3);
  return static_cast<uint32_t>(pair.y) << 16 | pair.x;
}

// Columns of chunk `chunk` of the pairs of `entry`; pairs and columns that do not exist are 0.
template <bool kGateUp>
__device__ void load_activations(const Params& p, const Entry& entry, int chunk, Activations& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const bool exists = g < entry.pairs;
  const bf16* row = p.x;
  if (exists) row += int64_t{kGateUp ? entry.token[g] : entry.first_pair + g} * p.x_stride;
  const int first = chunk * kUnitColumns + 2 * t;
#pragma unroll
  for (int i = 0; i < 2 * kUnitColumns / 16; ++i) {
    const int column = first + 8 * i;
    to.b[i] = exists && column < p.columns ? *reinterpret_cast<const uint32_t*>(row + column) : 0;
  }
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t* const b = to.b + group * kQ8Group / 8;
    float largest = 0;  // fmaxf drops NaN
#pragma unroll
    for (int i = 0; i < kQ8Group / 8; ++i) {
      const float2 v = __bfloat1622float2(ptx::as_bf162(b[i]));
      largest = fmaxf(largest, fmaxf(fabsf(v.x), fabsf(v.y)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    const uint8_t scale = q8_scale(largest);
    const float inverse = inverse_scale(scale);
#pragma unroll
    for (int i = 0; i < kQ8Group / 8; ++i) {
      const float2 v = __bfloat1622float2(ptx::as_bf162(b[i]));
      b[i] = q8_pair(v.x * inverse, v.y * inverse);
    }
    const float factor = ue8m0_to_f32(scale);
#pragma unroll
    for (int j = 0; j < 2; ++j) to.scale[group][j] = __shfl_sync(~0u, factor, 4 * (2 * t + j));
  }
}

}  // namespace dsv4::experts_kernel::sm90_few
