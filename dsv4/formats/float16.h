// bf16 and f16 as 16-bit codes: exact widening, round-to-nearest-even narrowing.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

DSV4_HD constexpr float bf16_to_f32(uint16_t code) {
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 16);
}

// NaN stays NaN (quieted, sign kept); overflow rounds to infinity as in IEEE 754.
DSV4_HD constexpr uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// bf16(x) of docs/spec/dsv4.md 0.4.
DSV4_HD constexpr float round_to_bf16(float value) {
  return bf16_to_f32(f32_to_bf16(value));
}

DSV4_HD constexpr float f16_to_f32(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 0x1fu;
  const uint32_t mantissa = code & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal or zero
  return sign != 0 ? -magnitude : magnitude;
}

// As f32_to_bf16: NaN stays NaN, overflow (from 65520 on) rounds to infinity.
DSV4_HD constexpr uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude < std::bit_cast<uint32_t>(0x1p-14f)) {
    // Subnormal: the number of 2^-24 steps. 2^-24 is the last place of 0.5, so adding 0.5 rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t code = rounded - (112u << 10);
  return sign | static_cast<uint16_t>(code > 0x7c00u ? 0x7c00u : code);
}

}  // namespace dsv4
