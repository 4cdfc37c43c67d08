// dsv4/device/ptx/upper_f16.cuh on the emulator.

#pragma once

#include <cstdint>

#include "dsv4/base/error.h"

namespace dsv4::ptx {

inline uint32_t upper_f16(uint32_t x) {
  const uint32_t high = x >> 16;
  DSV4_CHECK((high & 0x7c00u) != 0x7c00u, "upper_f16 of {:#x}, which is not finite", x);
  return high << 16 | high;
}

}  // namespace dsv4::ptx
