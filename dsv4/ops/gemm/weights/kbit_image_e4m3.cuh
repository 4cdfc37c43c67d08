// Codes of a k-bit image (formats/kbit_image.h) whose codebook is on the e4m3 grid, as A fragments of
// wgmma m64n8k32: a byte permute finds four codes.

#pragma once

#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/device/ptx/upper_f16.cuh"
#include "dsv4/ops/gemm/x/pair_columns.cuh"

namespace dsv4::gemm {

// The weights of a unit times entries of up to kWidth pairs (x/pair_columns.cuh).
template <int K, int kWidth>
struct KbitImageE4m3 {
  using Operand = __nv_fp8_e4m3;
  static constexpr int kSlabBytes = kUnitBytes<K>, kSlabColumns = kUnitColumns;

  // What a lane has of a unit: its codes, and the scales of rows g and g + 8 for the blocks to which
  // its columns of the product belong.
  struct Held {
    uint32_t words[4 * K];
    uint32_t scales[kHalves][kSets<kWidth>];  // two bytes each
  };
  static __device__ Held load(const unsigned char* unit) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* codes = reinterpret_cast<const uint4*>(unit) + lane;
    Held held;
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const uint4 four = codes[i * kWarp];
      held.words[4 * i] = four.x, held.words[4 * i + 1] = four.y;
      held.words[4 * i + 2] = four.z, held.words[4 * i + 3] = four.w;
    }
    const auto* row = reinterpret_cast<const uint16_t*>(unit + 512 * K + lane / 4 * 16);
    if constexpr (kWidth < 8) {
      const int block = lane % 4 * 2 / kWidth;
#pragma unroll
      for (int i = 0; i < kHalves * kSets<kWidth>; ++i)
        held.scales[i / kSets<kWidth>][i % kSets<kWidth>] = row[block + i * kSetBlocks<kWidth>];
    } else {
      const uint4 all = *reinterpret_cast<const uint4*>(row);
      const uint32_t two[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) held.scales[i / 4][i % 4] = two[i / 2] >> (16 * (i % 2));
    }
    return held;
  }
  // Fragment of block b of 32 columns: four codes a register. The upper four nibbles move down
  // through the FMA pipe, since byte permutes and masks keep the ALU busy. As f16 they are finite,
  // since bit 11 is 0.
  static __device__ void decode(const KbitTable& table, const Held& held, int block,
                                uint32_t (&a)[4]) {
    const uint32_t* const words = held.words + block / 2 * K;  // of a step of 64 columns
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t nibbles = kbit_nibbles(words, K, 2 * (block % 2) + i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t four = h == 0 ? nibbles : ptx::upper_f16(nibbles);
        a[2 * i + h] = ptx::prmt(table.low[0], table.low[K == 2 ? 0 : 1], four);
        if constexpr (K == 4) a[2 * i + h] ^= kbit_byte_signs(words, 2 * (block % 2) + i, h);
      }
    }
  }
  // The scales of rows g and g + 8, divided by 16, which Params::factor has.
  static __device__ float2 scale(const Held& held, int half, int set) {
    const uint32_t bytes = ptx::prmt(held.scales[half][set], 0, 0x4140) << 6;
    return __half22float2(reinterpret_cast<const __half2&>(bytes));
  }
};

}  // namespace dsv4::gemm
