// The second kernel: the sums over the slices, then two CTAs per token.
//
// Problem    mix = sums * rho; x = sum_j pre_j X_j, rounded to bf16, x' = rms_norm(x);
//            post = 2 sigmoid, comb = Sinkhorn, in the other CTA
// Bound      latency: sums and X from L2, two block barriers; Sinkhorn is 40 dependent steps
// Tiles      a thread has 8 columns; a warp sums a row of partial sums, 4 or 8 slices per lane
// Before the wait  the norm's weights

#pragma once

#include <cmath>

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/reciprocal.cuh"
#include "dsv4/ops/hc_boundary/sm90_few/params.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {

// A row of partial sums: lane i has slices 4 i .. 4 i + 3 and the same 128 later.
struct RowOfSums {
  float4 low{}, high{};

  __device__ RowOfSums(const Params& p, int token, int row) {
    const float* from = p.partial_of(token, row) + threadIdx.x % kWarp * 4;
    const int left = p.slices - static_cast<int>(threadIdx.x % kWarp) * 4;
    if (left > 0) low = *reinterpret_cast<const float4*>(from);
    if (left > 4 * kWarp) high = *reinterpret_cast<const float4*>(from + 4 * kWarp);
  }
  __device__ float total() const {
    return warp_sum(((low.x + low.y) + (low.z + low.w)) + ((high.x + high.y) + (high.z + high.w)));
  }
};

__device__ inline float sigmoid(float x) {
  return ptx::rcp_approx_ftz(1.f + expf(-x));
}

__device__ inline float rho_of(const Params& p, float squares) {
  return 1.f / sqrtf(squares / static_cast<float>(kStreams * p.d) + p.norm_eps);
}

template <class W>
__device__ void finish_x(const Params& p, int token) {
  __shared__ float sums[kStreams + 1], reduction[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            warps = static_cast<int>(blockDim.x) / kWarp;
  const int column = static_cast<int>(threadIdx.x) * kRun;
  float norm[kRun], base[kStreams];
  load<kRun>(static_cast<const W*>(p.norm) + column, norm);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) base[j] = p.base[j];
  const float scale = p.scale[0];
  ptx::griddepcontrol_wait();

  const bf16* const from = p.streams + token * p.token_stride + column;
  float values[kStreams][kRun];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) load<kRun>(from + j * p.stream_stride, values[j]);
  for (int i = warp; i <= kStreams; i += warps) {
    const float sum = RowOfSums(p, token, i < kStreams ? i : kMixes).total();
    if (threadIdx.x % kWarp == 0) sums[i] = sum;
  }
  __syncthreads();
  const float rho = rho_of(p, sums[kStreams]);
  float x[kRun] = {}, square = 0;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const float pre = sigmoid(sums[j] * rho * scale + base[j]) + p.hc_eps;
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = __fmaf_rn(pre, values[j][i], x[i]);
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    x[i] = to_float(from_float<bf16>(x[i]));
    square = __fmaf_rn(x[i], x[i], square);
  }
  const float mean = block_sum(square, reduction) / static_cast<float>(p.d);
  const float root = 1.f / sqrtf(mean + p.norm_eps);
#pragma unroll
  for (int i = 0; i < kRun; ++i) x[i] = x[i] * root * norm[i];
  store<kRun>(p.x + token * p.x_stride + column, x);
}

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

__device__ inline void store_comb(const Params& p, int token, const float* mix, float rho) {
  Matrix b;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      const int i = 2 * kStreams + kStreams * j + k;
      b[j][k] = mix[i] * rho * p.scale[2] + p.base[i];
    }
  }
  sinkhorn(b, p.sinkhorn_iters, p.hc_eps);
  float* const comb = p.comb + token * p.comb_stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k)
      if (lane == kStreams * j + k) comb[j * p.comb_row_stride + k] = b[j][k];
  }
}

__device__ inline void finish_gates(const Params& p, int token) {
  __shared__ float mix[kSums];
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  ptx::griddepcontrol_wait();
  for (int row = kStreams + warp; row < kSums; row += 2 * warps) {  // two at a time
    const int next = min(row + warps, kSums - 1);
    const RowOfSums low(p, token, row), high(p, token, next);
    const float sums[2] = {low.total(), high.total()};
    if (lane == 0) mix[row] = sums[0];
    if (lane == 0 && next == row + warps) mix[next] = sums[1];
  }
  __syncthreads();
  const float rho = rho_of(p, mix[kMixes]);
  if (warp == 0) store_comb(p, token, mix, rho);
  if (warp == warps - 1 && lane < kStreams) {
    const int i = kStreams + lane;
    p.post[token * p.post_stride + lane] = 2.f * sigmoid(mix[i] * rho * p.scale[1] + p.base[i]);
  }
}

// grid: [t, 2], d / kRun threads
template <class W>
__global__ void __launch_bounds__(kMaxSlices* kSlice / kRun)
    finish_kernel(const __grid_constant__ Params p) {
  ptx::griddepcontrol_launch_dependents();
  const int token = static_cast<int>(blockIdx.x);
  if (blockIdx.y == 0) {
    finish_x<W>(p, token);
  } else {
    finish_gates(p, token);
  }
}

}  // namespace dsv4::hc_boundary_kernel::sm90_few
