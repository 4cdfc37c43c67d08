// The arguments of a call as parameters of its kernels.

#pragma once

#include "dsv4/ops/gemm/x/boundary_params.cuh"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"

namespace dsv4::hc_boundary_kernel::sm90_few {

using namespace gemm::boundary;
using gemm::CodesOfRun, gemm::group_square, gemm::kRun, gemm::kRuns, gemm::Run;

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
          .codes = args.codes.rank > 0 ? args.codes.as<uint8_t>() : nullptr,
          .code_scales = args.codes.rank > 0 ? args.scales.as<uint8_t>() : nullptr,
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
