// The upper half of a register moved down, as an f16 number, by the FMA pipe instead of the ALU.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// Bits 0 - 15 of the result, and 16 - 31, are bits 16 - 31 of x, which are a finite f16 number.
// Subnormals and the sign of zero are kept: h * 1 - 0.
__device__ inline uint32_t upper_f16(uint32_t x) {
  uint32_t result;
  asm("{\n"
      ".reg .b16 low, high;\n"
      ".reg .b32 both, one, zero;\n"
      "mov.b32 {low, high}, %1;\n"
      "mov.b32 both, {high, high};\n"
      "mov.b32 one, 0x3c003c00;\n"
      "mov.b32 zero, 0x80008000;\n"
      "fma.rn.f16x2 %0, both, one, zero;\n"
      "}"
      : "=r"(result)
      : "r"(x));
  return result;
}

}  // namespace dsv4::ptx
