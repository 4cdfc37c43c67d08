// Descriptors of wgmma operands in shared memory. Plain arithmetic, no instruction: host code too.
//
// Layout: rows of 128 bytes (64 values of 16 bits) with the 128-byte swizzle, 1024-byte aligned:
// the 16-byte chunk c of row r is stored at 128 r + 16 (c ^ (r % 8)); 8 rows take 1024 bytes.
// Advancing 16 values along the row adds 32 bytes to the address.
//
// Without a swizzle (make_smem_desc_cells) the unit is a cell, 16 bytes of one row (8 values of 16
// bits along k). The cells of 8 rows follow each other, so that they are 128 bytes of memory.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// For b stored [k, n] with n > 64: columns 64 i .. 64 i + 63 are tile i, `tile_stride` bytes after
// tile i - 1 (the leading byte offset). Ignored for a single tile.
__device__ constexpr uint64_t make_smem_desc_128B(uint32_t address, uint32_t tile_stride = 16) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | uint64_t{tile_stride >> 4} << 16 | (address & 0x3ffff) >> 4;
}

// Cells: the next 8 values along k are `next_k` bytes later, the next 8 rows `next_rows` bytes.
__device__ constexpr uint64_t make_smem_desc_cells(uint32_t address, uint32_t next_k,
                                                   uint32_t next_rows) {
  return uint64_t{next_rows >> 4} << 32 | uint64_t{next_k >> 4} << 16 | (address & 0x3ffff) >> 4;
}

// The descriptor of an operand that starts `bytes` (a multiple of 16) later. Addresses have 18
// bits, so a 32-bit addition does not carry into other fields.
__device__ inline uint64_t advance_desc(uint64_t descriptor, uint32_t bytes) {
  const uint32_t low = static_cast<uint32_t>(descriptor) + (bytes >> 4);
  return (descriptor >> 32 << 32) | low;
}

}  // namespace dsv4::ptx
