// FP8 e4m3 ("fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; largest 448, no infinity,
// 0x7f/0xff NaN.
//
//   value = (-1)^s * 2^(e-7) * (1 + m/8)      e > 0
//         = (-1)^s * 2^-6    * m/8            e = 0
//
// Source: docs/spec/dsv4.md 0.4; OCP 8-bit floating point specification 1.0.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

inline constexpr float kE4M3Max = 448.f;

DSV4_HD constexpr float e4m3_to_f32(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  // The exponent field moves from bias 7 to bias 127; subnormals result from scaling.
  const float value = magnitude >= 8 ? std::bit_cast<float>((magnitude << 20) + (120u << 23))
                                     : static_cast<float>(magnitude) * 0x1p-9f;
  return sign != 0 ? -value : value;
}

// Rounds to nearest even. Values above 448 saturate (callers clamp first, docs/spec/dsv4.md 0.4
// Q8); NaN becomes 0x7f with its sign.
DSV4_HD constexpr uint8_t f32_to_e4m3(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7fu;
  if (magnitude >= std::bit_cast<uint32_t>(464.f))
    return sign | 0x7eu;  // saturates from halfway to 480 on
  if (magnitude < std::bit_cast<uint32_t>(0x1p-6f)) {
    // Subnormal: the number of 2^-9 steps. Adding 2^14 makes the float adder round to that grid,
    // ties to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(shifted) & 0xfu);
  }
  const uint32_t rounded = magnitude + 0x7ffffu + ((magnitude >> 20) & 1u);
  const uint32_t code = (rounded >> 20) - (120u << 3);
  return sign | static_cast<uint8_t>(code > 0x7eu ? 0x7eu : code);
}

}  // namespace dsv4
