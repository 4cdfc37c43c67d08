// dsv4/device/ptx/reciprocal.cuh on the emulator.

#pragma once

#include <cmath>

namespace dsv4::ptx {

inline float rcp_approx_ftz(float x) {
  return 1.f / x;
}

inline float rsqrt_approx_ftz(float x) {
  return 1.f / std::sqrt(x);
}

}  // namespace dsv4::ptx
