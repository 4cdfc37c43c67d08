// The second kernel: the sums over the tiles of columns, gates, and x.
//
// Problem    mix = sums * rho; x = sum_j pre_j X_j, rounded to bf16, x' = rms_norm(x), and Q8 of x'
//            where it is wanted; post = 2 sigmoid, comb = Sinkhorn
// Bound      memory: X' is read once, x' is written once
// Tiles      4 tokens a CTA; a thread has 8 columns of all of them, so that one barrier serves the
//            four norms
// Roles      the last warp computes post and comb, a lane a token (Sinkhorn is 40 dependent steps),
//            while the others compute x
// Order      sums over tiles ascending, everything else as in sm90_few/finish.cuh
// Before the wait  the norm's weights

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/gemm/x/boundary_gates.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/config.cuh"

namespace dsv4::hc_boundary_kernel::sm90_many {

struct FinishShared {
  alignas(16) float pre[kFinishTokens][kStreams];
  float sums[kFinishTokens][kSums];
  float squares[kFinishTokens][kMaxColumns / kGroup];  // of x, of groups of columns
};

inline constexpr int kNormBarrier = 1;  // named barrier of the warps that compute x

__device__ inline void sum_tiles(const ManyParams& p, int first, int count, FinishShared& s) {
  for (int i = static_cast<int>(threadIdx.x); i < count * kSums;
       i += static_cast<int>(blockDim.x)) {
    const int token = i / kSums, row = i % kSums;
    const bool is_dot = row < kMixes;
    const int64_t at = first + token;
    const float* const from = is_dot ? p.dots + at * kMixes + row : p.squares + at;
    const int64_t stride = int64_t{p.call.t} * (is_dot ? kMixes : 1);
    float sum = 0;
#pragma unroll 8
    for (int tile = 0; tile < p.tiles; ++tile) sum += from[tile * stride];
    s.sums[token][row] = sum;
  }
}

__device__ inline void compute_pre(const ManyParams& p, FinishShared& s, int thread) {
  if (thread >= kFinishTokens * kStreams) return;
  const int token = thread / kStreams, j = thread % kStreams;
  const float rho = rho_of(p.call, s.sums[token][kMixes]);
  s.pre[token][j] =
      sigmoid(s.sums[token][j] * rho * p.call.scale[0] + p.call.base[j]) + p.call.hc_eps;
}

// post and comb of a token, by one thread.
__device__ inline void store_gates(const ManyParams& p, int token, const float (&sums)[kSums]) {
  const Params& call = p.call;
  const float rho = rho_of(call, sums[kMixes]);
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    const int i = kStreams + j;
    call.post[token * call.post_stride + j] =
        2.f * sigmoid(sums[i] * rho * call.scale[1] + call.base[i]);
  }
  Matrix b;
  compute_comb(call, sums, rho, b);
  float* const comb = call.comb + token * call.comb_stride;
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
#pragma unroll
    for (int k = 0; k < kStreams; ++k) comb[j * call.comb_row_stride + k] = b[j][k];
  }
}

// Eight columns of the CTA's tokens. All threads but those of the last warp.
__device__ inline void finish_x(const ManyParams& p, int first, int count, int thread,
                                const float (&norm)[kRun], FinishShared& s) {
  const int column = thread * kRun, run = thread % kRuns, group = thread / kRuns;
  Run x[kFinishTokens];
#pragma unroll
  for (int i = 0; i < kFinishTokens; ++i) {
    if (i >= count) continue;
    StreamRuns streams;
    streams.load(p.call, first + i, column);
    x[i] = streams.combined(*reinterpret_cast<const float4*>(s.pre[i]));
    const float square = group_square(x[i]);
    if (run == 0) s.squares[i][group] = square;
  }
  ptx::barrier_sync(kNormBarrier, p.call.d / kRun);
#pragma unroll
  for (int i = 0; i < kFinishTokens; ++i) {
    if (i >= count) continue;
    const int64_t token = first + i;
    const Run out = normalized(x[i], root_of(p.call, s.squares[i], run), norm);
    out.store(p.call.x + token * p.call.x_stride + column);
    if (p.call.codes == nullptr) continue;
    const CodesOfRun q(out);
    *reinterpret_cast<uint2*>(p.call.codes + token * p.call.d + column) = q.codes;
    if (run == 0) p.call.code_scales[token * p.call.groups + group] = q.scale;
  }
}

// grid: [t / kFinishTokens], d / kRun + kWarp threads
template <class W, int kMaxD>
__global__ void __launch_bounds__(kMaxD / kRun + kWarp, kMaxD <= kUsualColumns ? 2 : 1)
    finish_kernel(const __grid_constant__ ManyParams p) {
  ptx::griddepcontrol_launch_dependents();
  __shared__ FinishShared s;
  const int thread = static_cast<int>(threadIdx.x), lanes = p.call.d / kRun;
  const int first = static_cast<int>(blockIdx.x) * kFinishTokens;
  const int count = min(kFinishTokens, p.call.t - first);
  float norm[kRun] = {};
  if (thread < lanes) load<kRun>(static_cast<const W*>(p.call.norm) + thread * kRun, norm);
  ptx::griddepcontrol_wait();

  sum_tiles(p, first, count, s);
  __syncthreads();
  compute_pre(p, s, thread);
  __syncthreads();
  if (thread < lanes) {
    finish_x(p, first, count, thread, norm, s);
  } else if (thread - lanes < count) {
    store_gates(p, first + thread - lanes, s.sums[thread - lanes]);
  }
}

}  // namespace dsv4::hc_boundary_kernel::sm90_many
