// dsv4/device/ptx/convert.cuh on the emulator.

#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "dsv4/formats/e4m3.h"
#include "tests/emulator/builtins.h"

namespace dsv4::ptx {

inline float ex2_approx_ftz(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.f : y;
}

inline void cvt_e4m3x4_to_f16x2(uint32_t codes, uint32_t& low, uint32_t& high) {
  const auto values = [](uint32_t two) {
    const __half2 pair = __floats2half2_rn(e4m3_to_f32(two & 0xff), e4m3_to_f32(two >> 8 & 0xff));
    return reinterpret_cast<const uint32_t&>(pair);
  };
  low = values(codes);
  high = values(codes >> 16);
}

inline void cvt_e4m3x4_to_f16x2_scaled(uint32_t codes, uint32_t low_scale, uint32_t high_scale,
                                       uint32_t& low, uint32_t& high) {
  const auto scaled = [](uint32_t two, const uint32_t& scales) {
    const __half2 values = __floats2half2_rn(e4m3_to_f32(two & 0xff), e4m3_to_f32(two >> 8 & 0xff));
    const __half2 product = __hmul2(values, reinterpret_cast<const __half2&>(scales));
    return reinterpret_cast<const uint32_t&>(product);
  };
  low = scaled(codes, low_scale);
  high = scaled(codes >> 16, high_scale);
}

}  // namespace dsv4::ptx
