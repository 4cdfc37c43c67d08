// What the operands of matrix instructions look like: pairs in registers, tiles in shared memory.
// Plain arithmetic, no instruction: it runs on the host too.

#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace dsv4::ptx {

// A pair of bf16 values and the register it travels in; low half first.
__device__ inline __nv_bfloat162 as_bf162(uint32_t bits) {
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}
__device__ inline uint32_t as_bits(__nv_bfloat162 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// A tile of rows of 128 bytes in shared memory (on 1024 bytes) whose 16-byte pieces are swizzled:
// piece c of row r lies at 128 r + 16 (c ^ (r % 8)), so 8 rows are 1024 bytes. Along the rows, 16
// values further are 32 bytes further.
//
// For b stored [k, n] with n > 64, columns 64 i .. 64 i + 63 are tile i, `across` bytes behind the
// one before.
__device__ constexpr uint64_t swizzled_tiles(uint32_t address, uint32_t across) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{across >> 4} << 16 | (address & 0x3ffff) >> 4;
}
__device__ constexpr uint64_t swizzled_tile(uint32_t address) {
  return swizzled_tiles(address, 16);  // not looked at
}
// The descriptor of what lies `bytes` (a multiple of 16) behind: one 32-bit addition, because
// addresses have 18 bits.
__device__ inline uint64_t further(uint64_t descriptor, uint32_t bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor >> 32 << 32) | low;
}

}  // namespace dsv4::ptx
