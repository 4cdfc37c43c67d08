// The boundary before a block of the network (ops/model/hc_boundary) as its kernels and the kernels
// that compute x themselves take it (boundary.cuh): sizes and pointers.

#pragma once

#include "dsv4/ops/gemm/x/columns8.cuh"

namespace dsv4::gemm::boundary {

inline constexpr int kStreams = 4;                        // m
inline constexpr int kMixes = kStreams * (2 + kStreams);  // pre | post | comb
inline constexpr int kSums = kMixes + 1;                  // the last: sum of squares
inline constexpr int kSlice = 32;                         // columns of d that a CTA of mix has
inline constexpr int kMixWarps = 8;                       // of a CTA of mix
inline constexpr int kWarpMixes = kMixes / kMixWarps;     // rows of fn of a warp
inline constexpr int kGroup = 128;                        // columns whose squares are added first
inline constexpr int kMaxSlices = 256;                    // two float4 per lane
inline constexpr int kMaxGroups = kMaxSlices * kSlice / kGroup;
inline constexpr int64_t kMaxTokens = 64;

struct Params {
  const void* y;  // null: no block before
  const float *y_post, *y_comb;
  int64_t y_stride, y_post_stride, y_comb_stride, y_comb_row_stride;
  const float *fn, *base, *scale;
  int64_t fn_stride;
  const void* norm;
  float norm_eps, hc_eps;
  int sinkhorn_iters;
  bf16* streams;
  int64_t token_stride, stream_stride;
  bf16* x;
  int64_t x_stride;
  uint8_t *codes, *code_scales;  // [t, d] E4M3, [t, d / 128] E8M0: Q8 of x; null: not wanted
  float *post, *comb;
  int64_t post_stride, comb_stride, comb_row_stride;
  float* partial;  // [t, kSums, slices]
  int t, d, slices, groups;
  float inverse_d;  // 1 / d

  __device__ float* partial_of(int token, int row) const {
    return partial + (token * kSums + row) * slices;
  }
};

}  // namespace dsv4::gemm::boundary
