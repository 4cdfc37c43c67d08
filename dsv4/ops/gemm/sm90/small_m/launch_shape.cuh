// The grids of the small-M kernels.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"

namespace dsv4::gemm {

inline LaunchShape launch_shape(const Shape& shape, const Split& split, int tokens) {
  return {.grid = int64_t{split.clusters()} * split.ranks(),
          .block = kThreads,
          .grid_y = ceil_div(shape.tokens, tokens),
          .shared = Layout(shape.format, tokens, split).bytes,
          .cluster = split.ranks(),
          .pdl = true};
}

inline LaunchShape launch_shape(const TwoFormats& formats) {
  return {.grid = formats.ctas(),
          .block = kThreads,
          .grid_y = ceil_div(formats.q8.tokens, formats.tokens),
          .shared = formats.shared(),
          .cluster = formats.split.q8.ranks(),
          .pdl = true};
}

// The grid of boundary_kernel has one cluster more.
inline LaunchShape launch_shape_with_boundary(const TwoFormats& formats) {
  LaunchShape shape = launch_shape(formats);
  shape.grid += formats.split.q8.ranks();
  return shape;
}

}  // namespace dsv4::gemm
