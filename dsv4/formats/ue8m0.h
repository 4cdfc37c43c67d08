// UE8M0: a power-of-two scale in one byte, value 2^(b-127); b = 255 is NaN (b = 0 is 2^-127).
// Source: docs/spec/dsv4.md 0.4; OCP Microscaling specification 1.0.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

DSV4_HD constexpr float ue8m0_to_f32(uint8_t code) {
  if (code == 255) return std::bit_cast<float>(0x7fc00000u);
  if (code == 0) return 0x1p-127f;  // a subnormal float
  return std::bit_cast<float>(static_cast<uint32_t>(code) << 23);
}

// pow2ceil(z) of docs/spec/dsv4.md 0.4 as a UE8M0 byte: exponent field, plus 1 if any mantissa bit
// is set. `z` is positive and finite.
DSV4_HD constexpr uint8_t pow2ceil_ue8m0(float z) {
  const auto bits = std::bit_cast<uint32_t>(z);
  const uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1u : 0u);
  return static_cast<uint8_t>(exponent > 254u ? 254u : exponent);
}

}  // namespace dsv4
