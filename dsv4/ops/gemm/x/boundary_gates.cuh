// The gates `post` and `comb` of a boundary (docs/spec/dsv4.md 8.2), by one CTA a token.
//
//   post = 2 sigmoid(mix rho scale_1 + base), comb = Sinkhorn(mix rho scale_2 + base)

#pragma once

#include "dsv4/ops/gemm/x/boundary_input.cuh"

namespace dsv4::gemm::boundary {

using Matrix = float[kStreams][kStreams];

// Each row divided by its sum + eps.
__device__ inline void row_step(Matrix& b, float eps) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float inverse = ptx::rcp_approx_ftz((b[j][0] + b[j][1]) + (b[j][2] + b[j][3]) + eps);
#pragma unroll
    for (int k = 0; k < kStreams; ++k) b[j][k] *= inverse;
  }
}
__device__ inline void column_step(Matrix& b, float eps) {
#pragma unroll
  for (int k = 0; k < kStreams; ++k) {
    const float inverse = ptx::rcp_approx_ftz((b[0][k] + b[1][k]) + (b[2][k] + b[3][k]) + eps);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) b[j][k] *= inverse;
  }
}

// docs/spec/dsv4.md 8.2. A thread has the whole matrix: a shuffle would take as long as a step.
__device__ inline void sinkhorn(Matrix& b, int iters, float eps) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float largest = fmaxf(fmaxf(b[j][0], b[j][1]), fmaxf(b[j][2], b[j][3]));
#pragma unroll
    for (int k = 0; k < kStreams; ++k) b[j][k] = expf(b[j][k] - largest);
  }
  row_step(b, 0.f);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) b[j][k] += eps;
  }
  column_step(b, eps);
#pragma unroll 1
  for (int i = 1; i < iters; ++i) {
    row_step(b, eps);
    column_step(b, eps);
  }
}

// comb of a token. mix: [kMixes], before the factor rho.
__device__ inline void compute_comb(const Params& p, const float* mix, float rho, Matrix& b) {
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      const int i = 2 * kStreams + kStreams * j + k;
      b[j][k] = mix[i] * rho * p.scale[2] + p.base[i];
    }
  }
  sinkhorn(b, p.sinkhorn_iters, p.hc_eps);
}

__device__ inline void store_comb(const Params& p, int token, const float* mix, float rho) {
  Matrix b;
  compute_comb(p, mix, rho, b);
  float* const comb = p.comb + token * p.comb_stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      if (lane == kStreams * j + k) comb[j * p.comb_row_stride + k] = b[j][k];
  }
}

// mix: [kSums], shared memory of the CTA. All threads, after the wait.
__device__ inline void finish_gates(const Params& p, int token, float* mix) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  for (int row = kStreams + warp; row < kSums; row += 2 * warps) {  // two at a time
    const int next = min(row + warps, kSums - 1);
    float sums[2];
    lane_sums<2>(p, p.partial_of(token, 0) + 4 * lane, {row, next}, lane, sums);
    const float low = warp_sum(sums[0]), high = warp_sum(sums[1]);
    if (lane == 0) mix[row] = low;
    if (lane == 0 && next == row + warps) mix[next] = high;
  }
  __syncthreads();
  const float rho = rho_of(p, mix[kMixes]);
  if (warp == 0) store_comb(p, token, mix, rho);
  if (warp == warps - 1 && lane < kStreams) {
    const int i = kStreams + lane;
    p.post[token * p.post_stride + lane] = 2.f * sigmoid(mix[i] * rho * p.scale[1] + p.base[i]);
  }
}

}  // namespace dsv4::gemm::boundary
