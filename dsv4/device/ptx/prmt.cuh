// prmt: a byte permute of two registers.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// Byte j of the result is byte s of {high, low}, s the low three bits of nibble j of `selectors`.
// Bit 3 of these four nibbles must be 0 (it would ask for the sign of the byte); nibbles 4 - 7 have
// no say. __byte_perm() clears bit 3 with one more instruction.
__device__ inline uint32_t prmt(uint32_t low, uint32_t high, uint32_t selectors) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selectors));
  return result;
}

}  // namespace dsv4::ptx
