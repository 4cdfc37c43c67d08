// Codes of a k-bit image (formats/kbit_image.h) to A fragments of mma.sync m16n8k16 in f16.
//
// Two ways, of which a unit uses both, because one is bound by the ALU (64 instructions a clock and
// SM), the other by issue slots (128) and shared memory:
//
//   permutes   The codebook is in registers as two tables, of the low and of the high bytes of its
//              values. PRMT takes four bytes of 8 by four nibbles of the code word: 4 permutes make
//              the two registers of four codes. 10 ALU instructions for 8 codes at K = 3
//   pairs      A table in shared memory has a register for each pair of codes, that is for each
//              byte of two nibbles, in a column for each lane, so reads are free of bank
//              conflicts. 7 ALU instructions and 4 loads for 8 codes
//
// Signs of K = 4 and 5 come on top with 4 logic operations for 8 codes.

#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/ops/gemm/weights/kbit_image_table.h"

namespace dsv4::gemm {

// K < 5. Bytes j of both results belong to nibble j of `selectors`, whose upper half is ignored.
template <int K>
__device__ inline void look_up(const KbitTable& table, uint32_t selectors, uint32_t& lows,
                               uint32_t& highs) {
  constexpr int kLast = K == 2 ? 0 : 1;  // of the words with the first eight entries
  lows = ptx::prmt(table.low[0], table.low[kLast], selectors);
  highs = ptx::prmt(table.high[0], table.high[kLast], selectors);
}

// Groups of a step of four whose codes are permuted; the others are looked up as pairs. Sixteen
// magnitudes are too many for permutes.
template <int K>
inline constexpr int kPermutedGroups = K == 5 ? 0 : 1;

// Bytes of nibbles that occur, and one more.
template <int K>
inline constexpr int kTwoCodeEntries = K == 2   ? 0x34
                                       : K == 5 ? 0x100
                                                : 0x78;
template <int K>
using TwoCodeTable = uint32_t[kTwoCodeEntries<K>][kWarp];

// Called by all threads of the CTA.
template <int K>
__device__ inline void fill_two_codes(const KbitTable& table, TwoCodeTable<K>& two_codes) {
  const auto value = [&](int index) {  // kEntries of them; others do not occur
    const int word = index / 4 % 4, shift = index % 4 * 8;
    return (table.low[word] >> shift & 0xffu) | (table.high[word] >> shift & 0xffu) << 8;
  };
  for (int i = static_cast<int>(threadIdx.x); i < kTwoCodeEntries<K> * kWarp;
       i += static_cast<int>(blockDim.x))
    two_codes[i / kWarp][i % kWarp] = value(i / kWarp % 16) | value(i / kWarp / 16) << 16;
}

// Two codes of a group by byte r of its nibbles.
template <int K>
__device__ inline uint32_t look_up_two(const TwoCodeTable<K>& two_codes, uint32_t nibbles, int r) {
  constexpr uint32_t kRow = sizeof(uint32_t) * kWarp;
  constexpr uint32_t kBytes = (K == 2 ? 0x33u : K == 5 ? 0xffu : 0x77u) * kRow;
  const uint32_t rows = (r == 0 ? nibbles * kRow : nibbles >> (8 * r - 7)) & kBytes;
  const uint32_t lane = threadIdx.x % kWarp * sizeof(uint32_t);
  return *reinterpret_cast<const uint32_t*>(reinterpret_cast<const unsigned char*>(two_codes) +
                                            (rows | lane));
}

// The signs of byte b of group i, in bits 15 and 31; other bits have no say.
template <int K>
__device__ inline uint32_t signs_of_two(const uint32_t* words, int i, int b) {
  if constexpr (K == 5) return words[4] << (15 - 4 * i - b);
  // The signs of the four codes of a half word are the top bits of its bytes, which are repeated.
  return ptx::prmt(words[i] << (b / 2 * 4), 0, b % 2 == 0 ? 0x9988 : 0xbbaa);
}

// words: the K words of one step of 64 columns. Fragment of group i.
template <int K>
__device__ inline void decode_group(const KbitTable& table, const TwoCodeTable<K>& two_codes,
                                    const uint32_t* words, int i, uint32_t (&a)[4]) {
  if (i < kPermutedGroups<K>) {
    const uint32_t index = kbit_nibbles(words, K, i);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t lows, highs;
      look_up<K>(table, half == 0 ? index : index >> 16, lows, highs);
      a[half] = ptx::prmt(lows, highs, 0x5140);
      a[half + 2] = ptx::prmt(lows, highs, 0x7362);
    }
  } else {
    // look_up_two() masks: the other bits of a word may stay.
    const uint32_t nibbles = K == 4 || (K == 3 && i < 3) ? words[i] : kbit_nibbles(words, K, i);
#pragma unroll
    for (int b = 0; b < 4; ++b) a[kbit_register(b)] = look_up_two<K>(two_codes, nibbles, b);
  }
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    if constexpr (K >= 4) a[kbit_register(b)] ^= signs_of_two<K>(words, i, b) & 0x80008000u;
  }
}

// The scales of block `block` of rows g and g + 8, over 16. scales: this lane's 16 bytes
__device__ inline float2 block_scales(const uint32_t (&scales)[4], int block) {
  const uint32_t bytes = ptx::prmt(scales[block / 2], 0, block % 2 == 0 ? 0x4140 : 0x4342) << 6;
  return __half22float2(reinterpret_cast<const __half2&>(bytes));
}

// What a lane has of a unit: weights as A fragments of mma.sync m16n8k16 in f16.
template <int K>
struct KbitImageF16 {
  using Operand = f16;
  static constexpr int kSlabBytes = kUnitBytes<K>, kSlabColumns = kUnitColumns;
  static constexpr int kBlock = 32, kBlocks = kUnitColumns / kBlock;  // columns that share a scale
  uint32_t words[4 * K], scales[4];

  __device__ explicit KbitImageF16(const unsigned char* unit) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* codes = reinterpret_cast<const uint4*>(unit) + lane;
#pragma unroll
    for (int i = 0; i < K; ++i) keep(codes[i * kWarp], words + 4 * i);
    keep(reinterpret_cast<const uint4*>(unit + 512 * K)[lane / 4], scales);
  }
  // The fragment of a half of a block, 16 columns.
  __device__ void decode(const KbitTable& table, const TwoCodeTable<K>& two_codes, int block,
                         int half, uint32_t (&a)[4]) const {
    decode_group<K>(table, two_codes, words + block / 2 * K, block % 2 * 2 + half, a);
  }
  // The scales of a block of rows g and g + 8, divided by 16, which Params::factor has.
  __device__ float2 scale(int block) const {
    return block_scales(scales, block);
  }

 private:
  static __device__ void keep(uint4 from, uint32_t* to) {
    to[0] = from.x, to[1] = from.y, to[2] = from.z, to[3] = from.w;
  }
};

}  // namespace dsv4::gemm
