// Codes of an image (formats/kbit_image.h) whose codebook is on the e4m3 grid, as A fragments of
// wgmma m64n8k32: a byte permute finds four codes. FP4 weights are codes of K = 4 with another kind
// of scale.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/device/ptx/upper_f16.cuh"
#include "dsv4/ops/gemm/weights/image_scales.cuh"
#include "dsv4/ops/gemm/x/pair_columns.cuh"

namespace dsv4::gemm {

// The codes of four columns a register for the 32 columns b of the words of 64 columns. The upper
// four nibbles move down through the FMA pipe, since byte permutes and masks keep the ALU busy. As
// f16 they are finite, since bit 11 is 0.
template <int K, class Table>
__device__ inline void decode_block(const Table& table, const uint32_t* words, int b,
                                    uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t nibbles = kbit_nibbles(words, K, 2 * b + i);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t four = h == 0 ? nibbles : ptx::upper_f16(nibbles);
      a[2 * i + h] = ptx::prmt(table.low[0], table.low[K == 2 ? 0 : 1], four);
      if constexpr (K == 4) a[2 * i + h] ^= kbit_byte_signs(words, 2 * b + i, h);
    }
  }
}

// What a lane has of a unit: its codes, and the scales of rows g and g + 8 for the blocks to which
// its columns of the product belong (x/pair_columns.cuh), in entries of up to kWidth pairs.
template <int K, ImageScale kScale, int kWidth_>
struct KbitImageE4m3 {
  using Operand = __nv_fp8_e4m3;
  static constexpr int kSlabBytes = kUnitBytes<K, kScale>, kSlabColumns = kUnitColumns;
  static constexpr int kWidth = kWidth_, kBlock = block_columns(kScale);
  static constexpr int kSets = gemm::kSets<kWidth, kBlock>;
  static_assert(kWidth <= most_pairs(kScale));
  // Products that add to the accumulators of a set.
  static constexpr int kSetProducts = kGroupProducts / kSets;
  // Sums of a lane: of each set of a group, rows g and g + 8 of columns 2t and 2t + 1.
  using Sums = float[kSets][4];

  uint32_t words[4 * K];
  uint32_t scales[kHalves][kSets];  // two bytes each

  __device__ explicit KbitImageE4m3(const unsigned char* unit) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* codes = reinterpret_cast<const uint4*>(unit) + lane;
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const uint4 four = codes[i * kWarp];
      words[4 * i] = four.x, words[4 * i + 1] = four.y;
      words[4 * i + 2] = four.z, words[4 * i + 3] = four.w;
    }
    const auto* row =
        reinterpret_cast<const uint16_t*>(unit + 512 * K) + lane / 4 * (kUnitColumns / kBlock);
    if constexpr (kWidth < 8) {
      const int block = lane % 4 * 2 / kWidth;
#pragma unroll
      for (int i = 0; i < kHalves * kSets; ++i)
        scales[i / kSets][i % kSets] = row[block + i * kSetBlocks<kWidth>];
    } else {
      const uint4 all = *reinterpret_cast<const uint4*>(row);
      const uint32_t two[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) scales[i / 4][i % 4] = two[i / 2] >> (16 * (i % 2));
    }
  }
  // The fragment of 32 columns.
  __device__ void decode(const KbitTable& table, int product, uint32_t (&a)[4]) const {
    decode_block<K>(table, words + product / 2 * K, product % 2, a);
  }
  // The scales of a set of blocks of rows g and g + 8, over what Params::factor has.
  __device__ float2 scale(int half, int set) const {
    return image_scales<kScale>(scales[half][set]);
  }
};

}  // namespace dsv4::gemm
