// dsv4/device/ptx/reciprocal.cuh on the emulator.

#pragma once

namespace dsv4::ptx {

inline float rcp_approx_ftz(float x) {
  return 1.f / x;
}

}  // namespace dsv4::ptx
