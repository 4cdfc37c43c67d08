// lop3: any logic function of three registers.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// kTable: the function of 0xf0, 0xcc and 0xaa in place of a, b and c. The compiler finds many such
// functions by itself, but not the cheapest way to combine two of them.
template <int kTable>
__device__ uint32_t lop3(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(kTable));
  return result;
}

}  // namespace dsv4::ptx
