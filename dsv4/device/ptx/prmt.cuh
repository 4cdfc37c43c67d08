// prmt: a byte permute of two registers.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// Byte j of the result is byte s of {high, low}, s the low three bits of nibble j of `selectors`,
// or, where bit 3 of the nibble is set, eight copies of the top bit of that byte; nibbles 4 - 7
// have no say. __byte_perm() clears bit 3 with one more instruction.
__device__ inline uint32_t prmt(uint32_t low, uint32_t high, uint32_t selectors) {
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selectors));
  return result;
}

}  // namespace dsv4::ptx
