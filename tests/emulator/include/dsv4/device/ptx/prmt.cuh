// dsv4/device/ptx/prmt.cuh on the emulator.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

inline uint32_t prmt(uint32_t low, uint32_t high, uint32_t selectors) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t result = 0;
  for (int j = 0; j < 4; ++j) {
    const uint32_t nibble = selectors >> 4 * j & 15;
    auto byte = static_cast<uint32_t>(bytes >> 8 * (nibble & 7)) & 0xffu;
    if (nibble > 7) byte = (byte & 0x80u) != 0 ? 0xffu : 0;
    result |= byte << 8 * j;
  }
  return result;
}

}  // namespace dsv4::ptx
