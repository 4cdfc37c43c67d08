// What online softmax in base 2 needs: P = 2^(z - m) with z = S * scale * log2(e).

#pragma once

#include "dsv4/device/sm90/limits.h"

namespace dsv4::sm90 {

// The m to subtract: the row max, or 0 where no key is valid (m = -inf would give inf - inf).
__device__ inline float finite_max(float row_max) {
  return row_max == -INFINITY ? 0.f : row_max;
}

}  // namespace dsv4::sm90
