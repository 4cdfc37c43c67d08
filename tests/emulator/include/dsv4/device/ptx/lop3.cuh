// dsv4/device/ptx/lop3.cuh on the emulator.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

template <int kTable>
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result = 0;
  for (int i = 0; i < 8; ++i) {
    const uint32_t here = (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    if ((kTable >> i & 1) != 0) result |= here;
  }
  return result;
}

}  // namespace dsv4::ptx
