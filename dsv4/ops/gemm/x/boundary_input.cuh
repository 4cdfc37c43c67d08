// The input x of a block from what mix leaves: partial sums and the updated streams. Shared by the
// finish kernel and by gemm/x/boundary.cuh, which computes x in the kernel that multiplies it.
//
//   rho = 1 / sqrt(mean(X^2) + eps), pre_j = sigmoid(mix_j rho scale_0 + base_j) + hc_eps
//   x = sum_j pre_j X_j, rounded to bf16; root = 1 / sqrt(mean(x^2) + eps)
//
// Order of additions: a lane has 8 columns, 16 lanes are a group of 128 columns and are added by a
// butterfly; the groups of a token are added by 16 lanes, each its groups in ascending order, and
// another butterfly. So the bits do not depend on which CTAs have which groups.

#pragma once

#include <cmath>

#include "dsv4/device/ptx/reciprocal.cuh"
#include "dsv4/ops/gemm/x/boundary_params.cuh"
#include "dsv4/ops/gemm/x/columns8.cuh"

namespace dsv4::gemm::boundary {

// Sums of kN values over the warp, kN a power of two: lane i gets that of value i / (32 / kN).
template <int kN, int kStep = kWarp / 2>
__device__ float sum_over_lanes(float* v, int lane) {
  if constexpr (kStep == 0) {
    return v[0];
  } else if constexpr (kN == 1) {
    v[0] += __shfl_xor_sync(~0u, v[0], kStep);
    return sum_over_lanes<1, kStep / 2>(v, lane);
  } else {
    const bool upper = (lane & kStep) != 0;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const float low = v[i], high = v[i + kN / 2];
      v[i] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kStep);
    }
    return sum_over_lanes<kN / 2, kStep / 2>(v, lane);
  }
}

// What lane i of a warp adds first of kRows rows of partial sums, `stride` floats apart: slices
// 4 i .. 4 i + 3 and those 128 later. row: of slice 4 i. All loads are issued at once.
template <int kRows>
__device__ void lane_sums(const Params& p, const float* row, const int (&rows)[kRows], int lane,
                          float (&sums)[kRows]) {
  const auto add = [&](int first) {
    if (first + 4 * lane >= p.slices) return;
    float4 v[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      v[i] = *reinterpret_cast<const float4*>(row + first + rows[i] * p.slices);
#pragma unroll
    for (int i = 0; i < kRows; ++i) sums[i] += (v[i].x + v[i].y) + (v[i].z + v[i].w);
  };
#pragma unroll
  for (float& sum : sums) sum = 0;
  add(0);
  if (p.slices > 4 * kWarp) add(4 * kWarp);
}

__device__ inline float sigmoid(float x) {
  return ptx::rcp_approx_ftz(1.f + expf(-x));
}

__device__ inline float rho_of(const Params& p, float squares) {
  return ptx::rsqrt_approx_ftz(squares * (p.inverse_d / kStreams) + p.norm_eps);
}

// The gates `pre` of a token, by a warp: pre_j in lane kGateLanes j.
inline constexpr int kGateLanes = 4;

struct PreGate {
  const float* row;  // of the token's partial sums, the lane's first slice
  float base, scale;

  // Before the wait.
  __device__ PreGate(const Params& p, int token, int lane)
      : row(p.partial_of(token, 0) + 4 * lane),
        base(p.base[lane / kGateLanes % kStreams]),
        scale(p.scale[0]) {}

  __device__ float compute(const Params& p, int lane) const {
    constexpr int kRows = kStreams + 1, kPadded = kWarp / kGateLanes;
    float sums[kRows], padded[kPadded] = {};
    lane_sums<kRows>(p, row, {0, 1, 2, 3, kMixes}, lane, sums);
#pragma unroll
    for (int i = 0; i < kRows; ++i) padded[i] = sums[i];
    const float sum = sum_over_lanes<kPadded>(padded, lane);
    const float rho = rho_of(p, __shfl_sync(~0u, sum, kGateLanes * kStreams));
    return sigmoid(sum * rho * scale + base) + p.hc_eps;
  }
};

// The streams of a run.
struct StreamRuns {
  Run stream[kStreams];

  __device__ void load(const Params& p, int token, int column) {
    const bf16* const from = p.streams + token * p.token_stride + column;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) stream[j] = Run::load(from + j * p.stream_stride);
  }
  // x before the norm.
  __device__ Run combined(const float4& pre) const {
    const float gates[kStreams] = {pre.x, pre.y, pre.z, pre.w};
    float x[kRun] = {};
#pragma unroll
    for (int j = 0; j < kStreams; ++j) {
      float v[kRun];
      stream[j].widen(v);
#pragma unroll
      for (int i = 0; i < kRun; ++i) x[i] = __fmaf_rn(gates[j], v[i], x[i]);
    }
    return Run::rounded(x);
  }
};

// squares: of the groups of a token; run: of 16 lanes that call this together.
__device__ inline float root_of(const Params& p, const float* squares, int run) {
  float sum = 0;
#pragma unroll 1
  for (int i = run; i < p.groups; i += kRuns) sum += squares[i];
  return ptx::rsqrt_approx_ftz(sum_of_group(sum) * p.inverse_d + p.norm_eps);
}

__device__ inline Run normalized(const Run& x, float root, const float (&norm)[kRun]) {
  float v[kRun];
  x.widen(v);
#pragma unroll
  for (int i = 0; i < kRun; ++i) v[i] = v[i] * root * norm[i];
  return Run::rounded(v);
}

}  // namespace dsv4::gemm::boundary
