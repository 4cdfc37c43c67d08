// Decoders of weights for the micro-benchmarks: an image's unit (formats/kbit_image.h) to A
// fragments of wgmma, and the value of a weight for the host's reference.
//
// A step of f16 is 64 columns (4 fragments of k16), of e4m3 128 (4 fragments of k32): 128 bytes of
// a row of x in both. A fragment of e4m3 has k in the order of the nibbles, so position 4t + 2c + p
// of 16 columns of x is column 2t + 8c + p.
//
//   KbitF16<K>     K3, K4: PRMT -> e4m3 byte -> f16 pairs -> times the E4M4 scale over 16; exact
//   Mxfp4E4m3      K4 image with a UE8M0 byte a block: e - e_ref is added to exponents of the
//                  eight bytes of the PRMT table; exact while exponents of a row span <= 12
//   K3RoundedE4m3  K3: codebook times E4M4 scale rounded to e4m3; a scale byte's four from a
//                  table in shared memory; at most 2^-4 off
//   K3ExponentE4m3 K3: only the exponent of the scale is in the byte; 1 + m / 16 is left for a
//                  promotion every 32 columns; exact. Scale bytes below 16 are not handled

#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/kbit_image.h"

namespace dsv4::micro {

inline constexpr float kCodebook3[] = {6.5f, 20, 36, 64};  // e4m3_codebook(3), (4) times 64
inline constexpr float kCodebook4[] = {2.75f, 8, 14, 20, 28, 36, 48, 64};
inline constexpr float kCodebookFp4[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
// Four words, which a lane reads from a copy of its own (ptxas keeps values of uniform addresses in
// uniform registers and copies them before each PRMT); from 8 on 256 words of K3RoundedE4m3.
inline constexpr int kTableWords = 264;

// A fragment's index (half row h) in registers, codes of group i: nibbles of half h of the word.
__device__ inline uint32_t half_word(uint32_t nibbles, int h) {
  return h == 0 ? nibbles : nibbles >> 16;
}

// Byte `place` of the scales of a step as a number.
__device__ inline uint32_t scale_byte(uint32_t word, int place) {
  return ptx::prmt(word, 0, 0x4440 + static_cast<uint32_t>(place));
}

template <int K>
struct KbitF16 {
  using Type = __half;
  static constexpr int kBits = K, kStepColumns = 64, kStepWords = K, kScaleWords = 1;
  static constexpr const char* kName = K == 3 ? "k3_f16" : "k4_f16";
  static constexpr bool kRounds = false;
  uint32_t low, high;

  __device__ KbitF16(const uint4& own, const uint32_t*) : low(own.x), high(own.y) {}
  __device__ void decode(const uint32_t* words, const uint32_t* scales, uint32_t (&a)[4][4]) const {
    uint32_t pair[2][2];  // of block, half: the scale of the row twice
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const uint32_t two = ptx::prmt(scales[0], 0, c == 0 ? 0x4140 : 0x4342) << 6;
      asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\nmov.b32 %0, {l, l};\nmov.b32 %1, {h, h};\n}"
          : "=r"(pair[c][0]), "=r"(pair[c][1])
          : "r"(two));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibbles = kbit_nibbles(words, K, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t four = ptx::prmt(low, high, half_word(nibbles, h));
        if constexpr (K == 4) four ^= kbit_byte_signs(words, i, h);
        ptx::cvt_e4m3x4_to_f16x2_scaled(four, pair[i / 2][h], pair[i / 2][h], a[i][h], a[i][h + 2]);
      }
    }
  }

  static void fill_table(uint32_t* table) {
    for (int i = 0; i < 8; ++i) {
      const float value = K == 3 ? kCodebook3[i % 4] * (i < 4 ? 1.f : -1.f) : kCodebook4[i];
      table[i / 4] |= uint32_t{f32_to_e4m3(value)} << (8 * (i % 4));
    }
  }
  __host__ __device__ static uint8_t random_scale(uint32_t random) {
    return static_cast<uint8_t>(random % 160 + 64);
  }
  static double weight(uint8_t code, uint8_t scale, const uint32_t*) {
    const int half = 1 << (K - 1);
    const float value = K == 3 ? kCodebook3[code % half] : kCodebook4[code % half];
    return (code >= half ? -value : value) * e4m4_to_f32(scale) / 16.0;
  }
};

// What the e4m3 decoders share: nibbles -> bytes of tables[block][half].
template <int K>
__device__ inline void decode_bytes(const uint32_t* words, const uint32_t (&low)[4][2],
                                    const uint32_t (&high)[4][2], uint32_t (&a)[4][4]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t* const step = words + i / 4 * K;
    const uint32_t nibbles = kbit_nibbles(step, K, i % 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t& four = a[i / 2][2 * (i % 2) + h];
      four = ptx::prmt(low[i / 2][h], high[i / 2][h], half_word(nibbles, h));
      if constexpr (K == 4) four ^= kbit_byte_signs(step, i % 4, h);
    }
  }
}

struct Mxfp4E4m3 {
  using Type = __nv_fp8_e4m3;
  static constexpr int kBits = 4, kStepColumns = 128, kStepWords = 8, kScaleWords = 2;
  static constexpr const char* kName = "mxfp4_e4m3";
  static constexpr bool kRounds = false;
  static constexpr uint32_t kReference = 115;  // of every row here; a row may have its own
  uint32_t low[2], high[2];

  __device__ Mxfp4E4m3(const uint4& own, const uint32_t*) : low{own.x, own.z}, high{own.y, own.w} {}
  __device__ void decode(const uint32_t* words, const uint32_t* scales, uint32_t (&a)[4][4]) const {
    uint32_t lows[4][2], highs[4][2];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t e = scale_byte(scales[c / 2], c % 2 * 2 + h);
        lows[c][h] = e * 0x08080800u + low[h];
        highs[c][h] = e * 0x08080808u + high[h];
      }
    }
    decode_bytes<4>(words, lows, highs, a);
  }

  static void fill_table(uint32_t* table) {
    uint32_t words[2] = {};
    for (int i = 0; i < 8; ++i)
      words[i / 4] |= uint32_t{f32_to_e4m3(kCodebookFp4[i] / 32)} << (8 * (i % 4));
    for (int h = 0; h < 2; ++h) {  // of both half rows
      table[2 * h] = words[0] - kReference * 0x08080800u;
      table[2 * h + 1] = words[1] - kReference * 0x08080808u;
    }
  }
  __host__ __device__ static uint8_t random_scale(uint32_t random) {
    return static_cast<uint8_t>(kReference + random % 12);
  }
  static double weight(uint8_t code, uint8_t scale, const uint32_t*) {
    const double value = std::ldexp(kCodebookFp4[code % 8] / 32, scale - int{kReference});
    return code >= 8 ? -value : value;
  }
};

struct K3RoundedE4m3 {
  using Type = __nv_fp8_e4m3;
  static constexpr int kBits = 3, kStepColumns = 128, kStepWords = 6, kScaleWords = 2;
  static constexpr const char* kName = "k3_rounded_e4m3";
  static constexpr bool kRounds = true;
  const uint32_t* bytes;  // [256] of a scale byte

  __device__ K3RoundedE4m3(const uint4&, const uint32_t* table) : bytes(table + 8) {}
  __device__ void decode(const uint32_t* words, const uint32_t* scales, uint32_t (&a)[4][4]) const {
    uint32_t lows[4][2], highs[4][2];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        lows[c][h] = bytes[scale_byte(scales[c / 2], c % 2 * 2 + h)];
        highs[c][h] = lows[c][h] | 0x80808080u;
      }
    }
    decode_bytes<3>(words, lows, highs, a);
  }

  static void fill_table(uint32_t* table) {
    for (int b = 0; b < 256; ++b) {
      for (int i = 0; i < 4; ++i) {
        const float value = kCodebook3[i] * e4m4_to_f32(static_cast<uint8_t>(b)) / 8;
        table[8 + b] |= uint32_t{f32_to_e4m3(value)} << (8 * i);
      }
    }
  }
  __host__ __device__ static uint8_t random_scale(uint32_t random) {
    return static_cast<uint8_t>(random % 96 + 96);
  }
  static double weight(uint8_t code, uint8_t scale, const uint32_t* table) {
    const auto byte = static_cast<uint8_t>(table[8 + scale] >> (8 * (code % 4)));
    return code >= 4 ? -e4m3_to_f32(byte) : e4m3_to_f32(byte);
  }
  // Without the rounding.
  static double exact_weight(uint8_t code, uint8_t scale) {
    const double value = kCodebook3[code % 4] * e4m4_to_f32(scale) / 8.0;
    return code >= 4 ? -value : value;
  }
};

struct K3ExponentE4m3 {
  using Type = __nv_fp8_e4m3;
  static constexpr int kBits = 3, kStepColumns = 128, kStepWords = 6, kScaleWords = 2;
  static constexpr const char* kName = "k3_exponent_e4m3";
  static constexpr bool kRounds = false;
  uint32_t low;

  __device__ K3ExponentE4m3(const uint4& own, const uint32_t*) : low(own.x) {}
  __device__ void decode(const uint32_t* words, const uint32_t* scales, uint32_t (&a)[4][4]) const {
    uint32_t lows[4][2], highs[4][2];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t e = scale_byte(scales[c / 2], c % 2 * 2 + h) >> 4;
        lows[c][h] = e * 0x08080808u + low;
        highs[c][h] = lows[c][h] | 0x80808080u;
      }
    }
    decode_bytes<3>(words, lows, highs, a);
  }
  // 1 + m / 16 of block c, half h.
  __device__ static float mantissa(const uint32_t* scales, int c, int h) {
    const int bit = c % 2 * 16 + h * 8;
    const uint32_t word = scales[c / 2];
    const uint32_t m = bit < 19 ? word << (19 - bit) : word >> (bit - 19);
    return __uint_as_float((m & 0x00780000u) | 0x3f800000u);
  }

  static void fill_table(uint32_t* table) {  // an exponent of 8 multiplies the codebook by 1 / 8
    for (int i = 0; i < 4; ++i) table[0] |= uint32_t{f32_to_e4m3(kCodebook3[i] / 8)} << (8 * i);
    table[0] -= 8u * 0x08080808u;
  }
  __host__ __device__ static uint8_t random_scale(uint32_t random) {
    return static_cast<uint8_t>(random % 96 + 96);
  }
  static double weight(uint8_t code, uint8_t scale, const uint32_t*) {
    const double value =
        std::ldexp(kCodebook3[code % 4] / 8 * (1 + scale % 16 / 16.0), scale / 16 - 8);
    return code >= 4 ? -value : value;
  }
};

// The column of x that is stored at `position` of a row.
template <class D>
__host__ __device__ constexpr int column_at(int position) {
  if (sizeof(typename D::Type) == 2) return position;
  const int t = position % 16 / 4, c = position % 4 / 2, p = position % 2;
  return position / 16 * 16 + 2 * t + 8 * c + p;
}

}  // namespace dsv4::micro
