// The second kernel: the sums over the slices, then two CTAs per token.
//
// Problem    mix = sums * rho; x = sum_j pre_j X_j, rounded to bf16, x' = rms_norm(x), and Q8 of x'
//            where it is wanted; post = 2 sigmoid, comb = Sinkhorn, in the other CTA
// Bound      latency: sums and X from L2, two block barriers; Sinkhorn is 40 dependent steps
// Tiles      a thread has 8 columns (input.cuh); a warp sums a row of partial sums, 4 or 8 slices
//            per lane
// Before the wait  the norm's weights, base and scale

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/input.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {

template <class W>
__device__ void finish_x(const Params& p, int token) {
  alignas(16) __shared__ float pre[kStreams];
  __shared__ float squares[kMaxGroups];
  const int thread = static_cast<int>(threadIdx.x), column = thread * kRun;
  const int lane = thread % kWarp, run = thread % kGroupRuns;
  float norm[kRun];
  load<kRun>(static_cast<const W*>(p.norm) + column, norm);
  const PreGate gates(p, token, lane);
  ptx::griddepcontrol_wait();

  StreamRuns streams;
  streams.load(p, token, column);
  if (thread < kWarp) {
    const float gate = gates.compute(p, lane);
    if (lane % kGateLanes == 0 && lane < kGateLanes * kStreams) pre[lane / kGateLanes] = gate;
  }
  __syncthreads();
  const Run x = streams.combined(*reinterpret_cast<const float4*>(pre));
  const float square = group_square(x);
  if (run == 0) squares[thread / kGroupRuns] = square;
  __syncthreads();
  const float root = root_of(p, squares, run);
  const Run out = normalized(x, root, norm);
  out.store(p.x + token * p.x_stride + column);
  if (p.codes == nullptr) return;
  const CodesOfRun q(out);
  *reinterpret_cast<uint2*>(p.codes + int64_t{token} * p.d + column) = q.codes;
  if (run == 0) p.code_scales[token * p.groups + thread / kGroupRuns] = q.scale;
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

// grid: [t, 2], d / kRun threads
template <class W>
__global__ void __launch_bounds__(kMaxSlices* kSlice / kRun)
    finish_kernel(const __grid_constant__ Params p) {
  ptx::griddepcontrol_launch_dependents();
  const int token = static_cast<int>(blockIdx.x);
  if (blockIdx.y == 0) {
    finish_x<W>(p, token);
  } else {
    __shared__ float mix[kSums];
    ptx::griddepcontrol_wait();
    finish_gates(p, token, mix);
  }
}

}  // namespace dsv4::hc_boundary_kernel::sm90_few
