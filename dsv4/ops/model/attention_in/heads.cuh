// The kernel of finish_heads_cuda() (queries.h): a CTA has some heads of a token and computes the
// token's rotations once, or loads them; a warp has a head, a lane 16 of its columns. Whoever calls
// it says in which order squares are added.

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
  const float2* rotations = nullptr;  // [t, kHeadPairs] cos and sin; null: computed here
};

// Columns of a lane in order, then a butterfly over the lanes.
struct SumOfLanes {
  static __device__ float of(const float (&squares)[kLaneColumns]) {
    float sum = 0;
#pragma unroll
    for (const float square : squares) sum += square;
    return warp_sum(sum);
  }
};

// RMS0_bf16 of docs/spec/dsv4.md 0.4.
template <class Sum>
__device__ void normalize_head(float (&x)[kLaneColumns], float eps) {
  float squares[kLaneColumns];
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) squares[i] = bf16_step(x[i] * x[i]);
  const float mean = bf16_step(Sum::of(squares) / static_cast<float>(kHeadWidth));
  const float root = bf16_step(1.f / sqrtf(bf16_step(mean + eps)));
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) x[i] = bf16_step(x[i] * root);
}

__device__ inline float2 rotation_of_token(const HeadParams& p, int pair) {
  const int64_t token = blockIdx.x;
  if (p.rotations != nullptr) return p.rotations[token * kHeadPairs + pair];
  return rotation_of(static_cast<float>(p.positions[token]), p.freqs[pair], false);
}

// grid: [t, heads / kHeadsOfCta]
template <class Sum>
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
  if (warp == 0) rotation[lane] = rotation_of_token(p, lane);
  __syncthreads();
  const int rotated = lane * kLaneColumns - (kHeadWidth - 2 * kHeadPairs);  // of those, the first
#pragma unroll
  for (int i = 0; i < kHeadsOfWarp; ++i) {
    const int head = first + i * kHeadWarps;
    if (head >= p.heads) continue;
    normalize_head<Sum>(x[i], p.eps);
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
