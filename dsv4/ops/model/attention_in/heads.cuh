// The kernel of heads.h: a CTA has some heads of a token and computes the token's rotations once; a
// warp has a head, a lane 16 of its columns.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/model/attention_in/bf16_step.cuh"
#include "dsv4/ops/parts/rope/rotation.cuh"

namespace dsv4::attention_in_kernel {

inline constexpr int kHeadWidth = 512, kHeadPairs = 32;
inline constexpr int kLaneColumns = kHeadWidth / kWarp;
inline constexpr int kHeadsOfWarp = 2, kHeadWarps = 8, kHeadsOfCta = kHeadsOfWarp * kHeadWarps;

struct HeadParams {
  bf16* q;  // [t, heads, kHeadWidth], contiguous
  int heads;
  const int32_t* positions;
  const float* freqs;
  float eps;
};

// RMS0_bf16 of docs/spec/dsv4.md 0.4.
__device__ inline void normalize_head(float (&x)[kLaneColumns], float eps) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) sum += bf16_step(x[i] * x[i]);
  const float mean = bf16_step(warp_sum(sum) / static_cast<float>(kHeadWidth));
  const float root = bf16_step(1.f / sqrtf(bf16_step(mean + eps)));
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) x[i] = bf16_step(x[i] * root);
}

// grid: [t, heads / kHeadsOfCta]
__global__ void __launch_bounds__(kHeadWarps* kWarp) finish_heads_kernel(HeadParams p) {
  ptx::pdl_start();
  __shared__ float2 rotation[kHeadPairs];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int first = static_cast<int>(blockIdx.y) * kHeadsOfCta + warp;
  bf16* const token = p.q + int64_t{blockIdx.x} * p.heads * kHeadWidth + lane * kLaneColumns;
  float x[kHeadsOfWarp][kLaneColumns];
#pragma unroll
  for (int i = 0; i < kHeadsOfWarp; ++i) {
    const int head = first + i * kHeadWarps;
    if (head < p.heads) {
      load<8>(token + head * kHeadWidth, x[i]);
      load<8>(token + head * kHeadWidth + 8, x[i] + 8);
    }
  }
  if (warp == 0) {
    const auto position = static_cast<float>(p.positions[blockIdx.x]);
    rotation[lane] = rotation_of(position, p.freqs[lane], false);
  }
  __syncthreads();
  const int rotated = lane * kLaneColumns - (kHeadWidth - 2 * kHeadPairs);  // of those, the first
#pragma unroll
  for (int i = 0; i < kHeadsOfWarp; ++i) {
    const int head = first + i * kHeadWarps;
    if (head >= p.heads) continue;
    normalize_head(x[i], p.eps);
    if (rotated >= 0) {
#pragma unroll
      for (int j = 0; j < kLaneColumns; j += 2) {
        const float2 turned = rotate({x[i][j], x[i][j + 1]}, rotation[(rotated + j) / 2]);
        x[i][j] = turned.x, x[i][j + 1] = turned.y;
      }
    }
    store<8>(token + head * kHeadWidth, x[i]);
    store<8>(token + head * kHeadWidth + 8, x[i] + 8);
  }
}

}  // namespace dsv4::attention_in_kernel
