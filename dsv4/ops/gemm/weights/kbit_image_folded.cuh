// MXFP4 codes of an image (formats/kbit_image.h) as A fragments of wgmma m64nNk32 in e4m3, with the
// scales of their blocks folded into the exponents of the codes.
//
//   operand = e2m1 * 2^(exponent - largest + 6)    exponent: of the block; largest: of the matrix
//
// An operand is exact where the exponent of its block is at most kFoldedSpan below the largest. A
// block of zeros may have any exponent. The exponent is added to the bytes of the table from which
// a permute takes the codes of a block.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/kbit_image.h"

namespace dsv4::gemm {

// What sums lack: weights over operands.
__device__ inline float folded_factor(int largest) {
  return ldexpf(1.f, largest - 127 - 6);
}

// What a lane holds of a unit: the words and scales of a step of 128 columns.
class KbitImageFolded {
 public:
  static constexpr int kSlabBytes = kUnitBytes<4, ImageScale::kUe8m0>;
  using Operand = __nv_fp8_e4m3;

  // Magnitudes of rows g and g + 8 as e4m3 codes, for a block of exponent 0. The bytes of blocks
  // that have weights do not carry, and that of zero does not change.
  struct Table {
    uint32_t low[2], high[2];

    __device__ Table(int largest, int largest_of_second) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto least =
            static_cast<uint32_t>((h == 0 ? largest : largest_of_second) - kFoldedSpan);
        low[h] = 0x14100800u - least * kLowStep;    // 1.5, 1, 0.5 and 0 times 2^-5
        high[h] = 0x24201c18u - least * kHighStep;  // 6, 4, 3, 2
      }
    }
  };

  // unit: in shared memory; step: 0 or 1
  __device__ void load(const unsigned char* unit, int step) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* const codes = reinterpret_cast<const uint4*>(unit) + lane;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const uint4 four = codes[(2 * step + v) * kWarp];
      words_[4 * v] = four.x, words_[4 * v + 1] = four.y;
      words_[4 * v + 2] = four.z, words_[4 * v + 3] = four.w;
    }
    const uint2 scales = *reinterpret_cast<const uint2*>(unit + 2048 + (lane / 4 * 2 + step) * 8);
    scales_[0] = scales.x, scales_[1] = scales.y;
  }

  // a: [block of 32 columns][register]
  __device__ void decode(const Table& table, uint32_t (&a)[4][4]) const {
#pragma unroll
    for (int block = 0; block < 4; ++block) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t exponent =
            ptx::prmt(scales_[block / 2], 0, 0x4440 + static_cast<uint32_t>(block % 2 * 2 + h));
        const uint32_t low = exponent * kLowStep + table.low[h],
                       high = exponent * kHighStep + table.high[h];
#pragma unroll
        for (int i = 0; i < 2; ++i) {  // of 16 columns
          const uint32_t* const words = words_ + block / 2 * 4;
          const int group = block % 2 * 2 + i;
          const uint32_t nibbles = kbit_nibbles(words, 4, group);
          a[block][2 * i + h] = ptx::prmt(low, high, h == 0 ? nibbles : nibbles >> 16) ^
                                kbit_byte_signs(words, group, h);
        }
      }
    }
  }

 private:
  // An exponent more, in each byte but that of zero.
  static constexpr uint32_t kLowStep = 0x08080800u, kHighStep = 0x08080808u;

  uint32_t words_[8], scales_[2];
};

}  // namespace dsv4::gemm
