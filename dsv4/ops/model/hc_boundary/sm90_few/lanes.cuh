// Several sums over a warp at once.

#pragma once

#include "dsv4/device/math.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {

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

}  // namespace dsv4::hc_boundary_kernel::sm90_few
