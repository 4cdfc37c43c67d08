// k-bit weights: blocks of 32 codes of K = 2..5 bits, stored as bit planes, with one E4M4 scale.
//
//   value of element i = codebook[code_i] * e4m4(scale)
//   plane word j (j = 0 .. K-1) holds bit j of the 32 codes; its bit i belongs to element i
//
// The blocks of a matrix [n, k] are along k, which is a multiple of 32. There are two layouts:
//
//   flat    words [n, k/32, K], scales [n, k/32]                           the file format
//   tiled   words [k_pad/64, n, 2, K], scales [k_pad/64, n, 2]             n a multiple of 128,
//           k_pad = k rounded up to 64, block b of a row at [b/2, row, b%2]; padding is zero
//
// The reference allocates flat buffers one block longer, for kernels that read past the end;
// nothing in this project needs that. Source: docs/spec/lowbit.md 1.2.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"
#include "dsv4/formats/codebook.h"
#include "dsv4/formats/e4m4.h"

namespace dsv4 {

inline constexpr int kKbitBlock = 32;

// codes: [32] below 2^bits -> planes: [bits]
DSV4_HD constexpr void pack_kbit_block(const uint8_t* codes, int bits, uint32_t* planes) {
  for (int j = 0; j < bits; ++j) {
    planes[j] = 0;
    for (int i = 0; i < kKbitBlock; ++i) planes[j] |= ((codes[i] >> j) & uint32_t{1}) << i;
  }
}

DSV4_HD constexpr uint8_t kbit_code(const uint32_t* planes, int bits, int i) {
  uint32_t code = 0;
  for (int j = 0; j < bits; ++j) code |= ((planes[j] >> i) & 1u) << j;
  return static_cast<uint8_t>(code);
}

// Positions of the blocks of a matrix [n, k] in the tiled layout.
struct KbitTiles {
  static constexpr int kTileK = 64, kTileN = 128;

  int64_t n, k;
  int bits;

  DSV4_HD constexpr int64_t num_blocks() const { return ceil_div(k, kTileK) * n * 2; }
  DSV4_HD constexpr int64_t block(int64_t row, int64_t kblock) const {
    return (kblock / 2 * n + row) * 2 + kblock % 2;
  }
  DSV4_HD constexpr int64_t word(int64_t row, int64_t kblock, int plane) const {
    return block(row, kblock) * bits + plane;
  }
};

}  // namespace dsv4
