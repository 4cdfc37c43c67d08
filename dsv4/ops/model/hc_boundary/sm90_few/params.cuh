// Shapes and arguments of the kernels of sm90_few.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

namespace dsv4::hc_boundary_kernel::sm90_few {

inline constexpr int kStreams = 4;                        // m
inline constexpr int kMixes = kStreams * (2 + kStreams);  // pre | post | comb
inline constexpr int kSums = kMixes + 1;                  // the last: sum of squares
inline constexpr int kSlice = 32;                         // columns of d that a CTA of mix has
inline constexpr int kMixWarps = 8;                       // of a CTA of mix
inline constexpr int kWarpMixes = kMixes / kMixWarps;     // rows of fn of a warp
inline constexpr int kRun = 8;                            // columns of a thread of finish
inline constexpr int kGroup = 128;                        // columns whose squares are added first
inline constexpr int kGroupRuns = kGroup / kRun;
inline constexpr int kMaxSlices = 256;  // two float4 per lane
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

inline int64_t num_slices(const HcBoundaryArgs& args) {
  return args.streams.dim(2) / kSlice;
}

inline Params make_params(const HcBoundaryArgs& args, float* partial) {
  const bool update = args.y.rank > 0;
  return {.y = update ? args.y.data : nullptr,
          .y_post = update ? args.y_post.as<float>() : nullptr,
          .y_comb = update ? args.y_comb.as<float>() : nullptr,
          .y_stride = update ? args.y.row_stride() : 0,
          .y_post_stride = update ? args.y_post.row_stride() : 0,
          .y_comb_stride = update ? args.y_comb.stride[0] : 0,
          .y_comb_row_stride = update ? args.y_comb.stride[1] : 0,
          .fn = args.hc.fn.as<float>(),
          .base = args.hc.base.as<float>(),
          .scale = args.hc.scale.as<float>(),
          .fn_stride = args.hc.fn.row_stride(),
          .norm = args.norm.data,
          .norm_eps = args.norm_eps,
          .hc_eps = args.hc_eps,
          .sinkhorn_iters = args.sinkhorn_iters,
          .streams = args.streams.as<bf16>(),
          .token_stride = args.streams.stride[0],
          .stream_stride = args.streams.stride[1],
          .x = args.x.as<bf16>(),
          .x_stride = args.x.row_stride(),
          .post = args.post.as<float>(),
          .comb = args.comb.as<float>(),
          .post_stride = args.post.row_stride(),
          .comb_stride = args.comb.stride[0],
          .comb_row_stride = args.comb.stride[1],
          .partial = partial,
          .t = static_cast<int>(args.streams.dim(0)),
          .d = static_cast<int>(args.streams.dim(2)),
          .slices = static_cast<int>(num_slices(args)),
          .groups = static_cast<int>(args.streams.dim(2) / kGroup),
          .inverse_d = 1 / static_cast<float>(args.streams.dim(2))};
}

}  // namespace dsv4::hc_boundary_kernel::sm90_few
