// E4M4: the block scale of k-bit weights. One unsigned byte, exponent e in the high nibble,
// mantissa m in the low one, bias 11:
//
//   e > 0   2^(e - 11) (1 + m/16)        smallest normal 2^-10, largest 31
//   e = 0   2^-10 m/16                   byte 0 is 0, smallest step 2^-14
//
// Every byte is a finite value, and values increase with the byte. Source: docs/spec/lowbit.md 1.2.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

inline constexpr float kE4M4Max = 31.f;
inline constexpr int kE4M4Bias = 11;

DSV4_HD constexpr float e4m4_to_f32(uint8_t code) {
  const uint32_t e = code >> 4, m = code & 15u;
  if (e == 0) return static_cast<float>(m) * 0x1p-14f;
  return std::bit_cast<float>(((e + (127 - kE4M4Bias)) << 23) | (m << 19));
}

// The encoder of the format's reference, with its two peculiarities: a mantissa that would round up
// to 16 stays 15 (no carry), and values from 32 on wrap (40 becomes 20). Zero, negative values and
// NaN give 0. Code that writes weights must keep values <= kE4M4Max (quantize_kbit refuses or
// rescales).
DSV4_HD constexpr uint8_t f32_to_e4m4(float value) {
  if (!(value > 0)) return 0;
  const auto bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23) - 127;  // floor(log2 value)
  const int biased = exponent + kE4M4Bias;
  uint32_t m = 0;
  if (biased > 0) {
    const uint32_t fraction = bits & 0x7fffffu;  // of 2^23: m = rint(fraction / 2^19), ties to even
    m = (fraction + 0x3ffffu + ((fraction >> 19) & 1u)) >> 19;
  } else {
    const float steps = value * 0x1p14f;  // < 16; adding 2^23 rounds to an integer, ties to even
    m = static_cast<uint32_t>((steps + 0x1p23f) - 0x1p23f);
  }
  const int e = biased < 0 ? 0 : biased > 15 ? 15 : biased;
  return static_cast<uint8_t>((e << 4) | (m > 15 ? 15 : static_cast<int>(m)));
}

}  // namespace dsv4
