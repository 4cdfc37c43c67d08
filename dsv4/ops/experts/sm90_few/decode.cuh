// Codes of a k-bit image (formats/kbit_image.h) to A fragments of mma.sync m16n8k16 in f16.
//
// The codebook is in registers as two tables, of the low and of the high bytes of its values. A
// byte permute (PRMT) takes four bytes of 8 by four nibbles of the code word: 4 permutes make the
// two registers of four codes. ALU instructions for a weight, of which an SM executes 64 a clock:
//
//   K     permutes   selectors   signs   sum
//   2     1.0        0.3         -       1.3
//   3     1.0        0.4         -       1.4
//   4     1.0        0.25        0.5     1.75
//   5     2.0        0.75        0.5     3.25

#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/ops/experts/sm90_few/table.h"

namespace dsv4::experts_few {

// Bytes j of both results belong to nibble j of `selectors`, whose upper half is ignored.
template <int K>
__device__ inline void look_up(const Table& table, uint32_t selectors, uint32_t& lows,
                               uint32_t& highs) {
  constexpr int kLast = K == 2 ? 0 : 1;  // of the words with the first eight entries
  if constexpr (K < 5) {
    lows = ptx::prmt(table.low[0], table.low[kLast], selectors);
    highs = ptx::prmt(table.high[0], table.high[kLast], selectors);
  } else {  // byte j of the first or of the second eight entries
    const uint32_t eight = selectors & 0x7777u, half = ((selectors >> 1) & 0x4444u) | 0x3210u;
    lows = ptx::prmt(ptx::prmt(table.low[0], table.low[1], eight),
                     ptx::prmt(table.low[2], table.low[3], eight), half);
    highs = ptx::prmt(ptx::prmt(table.high[0], table.high[1], eight),
                      ptx::prmt(table.high[2], table.high[3], eight), half);
  }
}

// words: the K words of one step of 64 columns. Fragment of group i: registers 0 .. 3 hold codes 2r
// and 2r + 1.
template <int K>
__device__ inline void decode_group(const Table& table, const uint32_t* words, int i,
                                    uint32_t (&a)[4]) {
  const uint32_t index = kbit_nibbles(words, K, i);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t lows, highs;
    look_up<K>(table, half == 0 ? index : index >> 16, lows, highs);
    a[2 * half] = ptx::prmt(lows, highs, 0x5140);
    a[2 * half + 1] = ptx::prmt(lows, highs, 0x7362);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    if constexpr (K >= 4) a[r] ^= kbit_signs(words, K, i, r);
  }
}

// The scales of block `block` of rows g and g + 8, over 16. scales: this lane's 16 bytes
__device__ inline float2 block_scales(const uint32_t (&scales)[4], int block) {
  const uint32_t bytes = ptx::prmt(scales[block / 2], 0, block % 2 == 0 ? 0x4140 : 0x4342) << 6;
  return __half22float2(reinterpret_cast<const __half2&>(bytes));
}

}  // namespace dsv4::experts_few
