// FP4 e2m1: sign in bit 3, magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6. Two codes per byte; the low nibble
// is the even k. Source: docs/spec/dsv4.md 0.4, 10.4, 13.4; OCP Microscaling specification 1.0.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

inline constexpr float kE2M1Max = 6.f;

DSV4_HD constexpr float e2m1_to_f32(uint8_t code) {
  constexpr float kMagnitude[8] = {0.f, 0.5f, 1.f, 1.5f, 2.f, 3.f, 4.f, 6.f};
  const float value = kMagnitude[code & 7u];
  return (code & 8u) != 0 ? -value : value;
}

// Rounds to nearest, ties to the even code, and saturates at 6 (docs/spec/dsv4.md 13.4). NaN
// becomes +6, as with cvt.rn.
DSV4_HD constexpr uint8_t f32_to_e2m1(float value) {
  if (value != value) return 7;
  const uint8_t sign = (std::bit_cast<uint32_t>(value) >> 28) & 8u;
  const float a = value < 0 ? -value : value;
  // Midpoints: a tie rounds up exactly when the upper code is even.
  const uint8_t code = a > 5.f      ? 7
                       : a >= 3.5f  ? 6
                       : a > 2.5f   ? 5
                       : a >= 1.75f ? 4
                       : a > 1.25f  ? 3
                       : a >= 0.75f ? 2
                       : a > 0.25f  ? 1
                                    : 0;
  return sign | code;
}

DSV4_HD constexpr uint8_t e2m1_pair(uint8_t even, uint8_t odd) {
  return static_cast<uint8_t>((even & 0xfu) | (odd << 4));
}
DSV4_HD constexpr uint8_t e2m1_code(uint8_t pair, int k) {
  return (k & 1) != 0 ? static_cast<uint8_t>(pair >> 4) : static_cast<uint8_t>(pair & 0xfu);
}

}  // namespace dsv4
