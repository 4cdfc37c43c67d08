// Codes of an image (formats/kbit_image.h) times the scales of their blocks, as A fragments of
// wgmma m64nNk16: for sums over all of K in one accumulator, where no f32 addition can apply a
// scale.
//
//   k-bit   f16(codebook / unit) * (scale / 16), rounded to f16. The largest value of the codebook
//           lies in [128, 256) units. Codebooks on the e4m3 grid have 4 significant bits and scales
//           have 5, so their products are exact; others are off by at most 2^-10.4. A value on the
//           grid is one byte, which a permute finds and a conversion widens: a quarter fewer
//           instructions than for two bytes
//   FP4     bf16(codebook) * bf16(scale): 2 significant bits times 1 (MXFP4) or 4 (NVFP4) and the
//           exponents of f32, so exact
//
// Sixteen magnitudes (K = 5) are two tables of eight and a byte permute that selects.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/ops/gemm/weights/image_scales.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_table.h"

namespace dsv4::gemm {

// Exponent of the largest value in units, which keeps products with the smallest scale normal.
inline constexpr int kScaledTop = 7;
// What a permute finds of a codebook value.
enum class ScaledTable : uint8_t { kTwoBytes, kE4m3 };
inline ScaledTable scaled_table(const Codebook& book, ImageScale scale) {
  return scale == ImageScale::kE4M4 && fits_e4m3(book) ? ScaledTable::kE4m3
                                                       : ScaledTable::kTwoBytes;
}
inline KbitTable make_scaled_table(const Codebook& book, ImageScale scale) {
  if (scaled_table(book, scale) == ScaledTable::kE4m3) return make_e4m3_table(book);
  return scale == ImageScale::kE4M4 ? make_f16_table(book, kScaledTop) : make_bf16_table(book);
}
// What sums lack beside the table's unit.
inline float scaled_factor(ImageScale scale) {
  return scale == ImageScale::kE4M4 ? 16.f : 1.f;
}

// A copy of the table for each lane, in shared memory. ptxas keeps what it knows to be equal for
// all lanes in uniform registers, and copies it before every permute.
struct TableCopies {
  uint32_t low[4][kWarp], high[4][kWarp];
};
// Called by all threads of the CTA.
__device__ inline void fill_table_copies(const KbitTable& table, TableCopies& copies) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, i = static_cast<int>(threadIdx.x) / kWarp;
  if (i < 4) copies.low[i][lane] = table.low[i], copies.high[i][lane] = table.high[i];
}

// What a lane holds of a unit: the words of the current step, loaded when it first needs them.
template <int K, ImageScale kScale = ImageScale::kE4M4, ScaledTable kTable = ScaledTable::kTwoBytes>
class KbitImageScaled {
 public:
  static constexpr bool kFp4 = kScale != ImageScale::kE4M4;
  static constexpr ScaledTable kTableKind = kTable;
  static constexpr int kSlabBytes = kUnitBytes<K, kScale>;
  using Operand = std::conditional_t<kFp4, bf16, f16>;

  // The codebook in registers of the thread.
  struct Table {
    static constexpr int kWords = K == 2 ? 1 : K == 5 ? 4 : 2;
    uint32_t low[kWords], high[kWords];

    __device__ explicit Table(const TableCopies& from) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
      for (int i = 0; i < kWords; ++i) low[i] = from.low[i][lane], high[i] = from.high[i][lane];
    }
  };

  // unit: in shared memory. Steps 0, 1, 2, 3 in this order.
  __device__ void load(const unsigned char* unit, int step) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* codes = reinterpret_cast<const uint4*>(unit) + lane;
#pragma unroll
    for (int v = 0; v < K; ++v) {
      if (4 * v / K != step) continue;
      const uint4 four = codes[v * kWarp];
      words_[4 * v] = four.x, words_[4 * v + 1] = four.y;
      words_[4 * v + 2] = four.z, words_[4 * v + 3] = four.w;
    }
    const unsigned char* const scales =
        unit + 512 * K + (lane / 4 * KbitImage::kSteps + step) * kStepScales * 4;
#pragma unroll
    for (int i = 0; i < kStepScales; ++i) scales_[i] = reinterpret_cast<const uint32_t*>(scales)[i];
  }

  // Fragments of the four groups of 16 columns of the step.
  __device__ void decode(const Table& table, int step, uint32_t (&a)[4][4]) const {
    const uint32_t* const words = words_ + step * K;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibbles = kbit_nibbles(words, K, i);
      Pair scale[2];
      scales_of(i, scale);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (kTable == ScaledTable::kE4m3) {
          uint32_t four =
              ptx::prmt(table.low[0], table.low[K == 2 ? 0 : 1], h == 0 ? nibbles : nibbles >> 16);
          if constexpr (K == 4) four ^= kbit_byte_signs(words, i, h);
          const uint32_t twice = ptx::as_bits(scale[h]);
          ptx::cvt_e4m3x4_to_f16x2_scaled(four, twice, twice, a[i][h], a[i][h + 2]);
          continue;
        }
        uint32_t lows, highs;
        look_up(table, h == 0 ? nibbles : nibbles >> 16, lows, highs);
        if constexpr (K == 4) highs ^= kbit_byte_signs(words, i, h);
        uint32_t first = ptx::prmt(lows, highs, 0x5140), second = ptx::prmt(lows, highs, 0x7362);
        if constexpr (K == 5) {
          first ^= kbit_signs(words, K, i, 2 * h);
          second ^= kbit_signs(words, K, i, 2 * h + 1);
        }
        a[i][h] = times(first, scale[h]);
        a[i][h + 2] = times(second, scale[h]);
      }
    }
  }

 private:
  using Pair = std::conditional_t<kFp4, __nv_bfloat162, __half2>;
  // Words with the scales of a step.
  static constexpr int kStepScales = 2 * KbitImage::kStepColumns / block_columns(kScale) / 2 / 2;

  static __device__ uint32_t times(uint32_t pair, Pair scale) {
    return ptx::as_bits(__hmul2(reinterpret_cast<const Pair&>(pair), scale));
  }

  // The scales of rows g and g + 8 in group i of 16 columns, each twice; k-bit ones over 16.
  __device__ void scales_of(int i, Pair (&scale)[2]) const {
    const int block = 16 * i / block_columns(kScale);  // of the step
    const uint32_t word = scales_[block / 2], first = block % 2 * 2;
    if constexpr (kFp4) {
      const float2 two = image_scales<kScale>(ptx::prmt(word, 0, 0x4410 + 0x11 * first));
      scale[0] = __float2bfloat162_rn(two.x), scale[1] = __float2bfloat162_rn(two.y);
    } else {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h)  // bytes: scale, 0, scale, 0
        scale[h] = ptx::as_half2(ptx::prmt(word, 0, 0x4040 + 0x101 * (first + h)) << 6);
    }
  }

  // Bytes j of both results belong to nibble j of `nibbles`, whose upper half is ignored.
  static __device__ void look_up(const Table& table, uint32_t nibbles, uint32_t& lows,
                                 uint32_t& highs) {
    constexpr int kLast = K == 2 ? 0 : 1;
    if constexpr (K < 5) {
      lows = ptx::prmt(table.low[0], table.low[kLast], nibbles);
      highs = ptx::prmt(table.high[0], table.high[kLast], nibbles);
    } else {
      const uint32_t index = nibbles & 0x7777u, select = (nibbles >> 1 & 0x4444u) | 0x3210u;
      lows = ptx::prmt(ptx::prmt(table.low[0], table.low[1], index),
                       ptx::prmt(table.low[2], table.low[3], index), select);
      highs = ptx::prmt(ptx::prmt(table.high[0], table.high[1], index),
                        ptx::prmt(table.high[2], table.high[3], index), select);
    }
  }

  uint32_t words_[4 * K], scales_[kStepScales];
};

}  // namespace dsv4::gemm
