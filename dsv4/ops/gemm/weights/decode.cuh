// Decoding of stored weights in registers, one struct per format. A lane decodes a unit of kColumns
// neighboring columns of a row, in pieces of 8:
//
//   Loaded   the unit as stored, with its scale; zero-initialized it decodes to zeros
//   Codes    the same, prepared for piece()
//   piece    decodes 8 columns to f32, without their scale
//   scale    the scale of a piece; kScaled neighboring pieces share one (0: the format has none)
//   kIsBf16  whether the tensor core kernels take the format with bf16 operands: its values are
//            bf16 numbers, or may be rounded to bf16; kIsF16 with f16 operands
//
// The kernels scale sums rather than weights: one multiplication per 16 or 32 columns.
//
// Loads are 16 bytes wide where the format allows it: rows must start at a multiple of kAlign
// bytes.

#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/formats/weight.h"

namespace dsv4::gemm::cuda {

// One matrix of a StridedWeight.
struct Matrix {
  const std::byte* data;
  const std::byte* scale;
  int64_t row_bytes, scale_row_bytes;
  bool scale_is_f32;
  float scale2;
  const float* codebook;
};

// The matrix whose row 0 is row `row` of this one. scale_rows: rows that share one row of scales.
__device__ inline Matrix from_row(Matrix matrix, int64_t row, int scale_rows) {
  matrix.data += row * matrix.row_bytes;
  matrix.scale += row / scale_rows * matrix.scale_row_bytes;
  return matrix;
}

template <class T>
__device__ inline T load_as(const std::byte* at) {
  return __ldg(reinterpret_cast<const T*>(at));
}

__device__ inline void widen_bf16x2(uint32_t pair, float* out) {
  out[0] = __uint_as_float(pair << 16);
  out[1] = __uint_as_float(pair & 0xffff0000u);
}
__device__ inline void widen_f16x2(uint32_t pair, float* out) {
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  out[0] = v.x, out[1] = v.y;
}
__device__ inline void widen_e4m3x2(uint32_t pair, float* out) {
  const __half2_raw h =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  const float2 v = __half22float2(__half2(h));
  out[0] = v.x, out[1] = v.y;
}

// Formats whose units need no preparation and have no scale.
template <class Unit>
struct Direct {
  using Loaded = Unit;
  using Codes = Unit;
  static constexpr int kTable = 0, kScaled = 0;  // kTable: entries of the codebook
  static __device__ Codes codes(const Loaded& loaded, const Matrix&) { return loaded; }
  static __device__ float scale(const Codes&, int) { return 1.f; }
};

struct F32Unit {
  float4 half[2];
};
struct DecodeF32 : Direct<F32Unit> {
  static constexpr int kColumns = 8, kAlign = 16;
  static constexpr bool kIsBf16 = false, kIsF16 = false;
  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    const std::byte* at = w.data + row * w.row_bytes + unit * 32;
    return {{load_as<float4>(at), load_as<float4>(at + 16)}};
  }
  static __device__ void piece(const Codes& c, int, const float*, float (&w)[8]) {
    for (int h = 0; h < 2; ++h) {
      w[4 * h] = c.half[h].x, w[4 * h + 1] = c.half[h].y;
      w[4 * h + 2] = c.half[h].z, w[4 * h + 3] = c.half[h].w;
    }
  }
};

struct Unit16 {
  uint4 words;
};
template <bool kBF16>
struct DecodeHalf : Direct<Unit16> {
  static constexpr int kColumns = 8, kAlign = 16;
  static constexpr bool kIsBf16 = kBF16, kIsF16 = !kBF16;
  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    return {load_as<uint4>(w.data + row * w.row_bytes + unit * 16)};
  }
  static __device__ void piece(const Codes& c, int, const float*, float (&w)[8]) {
    const uint32_t words[4] = {c.words.x, c.words.y, c.words.z, c.words.w};
    for (int i = 0; i < 4; ++i)
      kBF16 ? widen_bf16x2(words[i], w + 2 * i) : widen_f16x2(words[i], w + 2 * i);
  }
};
struct DecodeBF16 : DecodeHalf<true> {};
struct DecodeF16 : DecodeHalf<false> {};

// 16 bytes and the bits of their scale, which is converted only when the values are used.
struct ScaledUnit {
  uint4 words;
  uint32_t scale;
};
struct ScaledCodes {
  uint4 words;
  float scale;
};
struct DecodeFp8 {
  static constexpr int kColumns = 16, kAlign = 16, kTable = 0, kScaled = 2;
  static constexpr bool kIsBf16 = true, kIsF16 = false;
  using Loaded = ScaledUnit;
  using Codes = ScaledCodes;
  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    const std::byte* scales = w.scale + row / kFp8BlockSize * w.scale_row_bytes;
    const int64_t block = unit / (kFp8BlockSize / kColumns);
    return {
        load_as<uint4>(w.data + row * w.row_bytes + unit * 16),
        w.scale_is_f32 ? load_as<uint32_t>(scales + block * 4) : load_as<uint8_t>(scales + block)};
  }
  static __device__ Codes codes(const Loaded& u, const Matrix& w) {
    return {u.words, w.scale_is_f32 ? __uint_as_float(u.scale)
                                    : ue8m0_to_f32(static_cast<uint8_t>(u.scale))};
  }
  static __device__ void piece(const Codes& c, int p, const float*, float (&w)[8]) {
    const uint32_t words[2] = {p == 0 ? c.words.x : c.words.z, p == 0 ? c.words.y : c.words.w};
    for (int i = 0; i < 2; ++i) {
      widen_e4m3x2(words[i] & 0xffffu, w + 4 * i);
      widen_e4m3x2(words[i] >> 16, w + 4 * i + 2);
    }
  }
  static __device__ float scale(const Codes& c, int) { return c.scale; }
};

// Eight nibbles of e2m1 as f32. Placed in an f16 (3 bits from bit 9, sign in bit 15), an e2m1 code
// reads as 2^-14 times its value, subnormals included.
__device__ inline void widen_e2m1x8(uint32_t word, float* out) {
  const __half2 factor = __float2half2_rn(0x1p14f);
  for (int i = 0; i < 4; ++i) {  // columns i and i + 4
    const uint32_t v = word >> (4 * i);
    const uint32_t pair = ((v << 12) & 0x80008000u) | ((v << 9) & 0x0e000e00u);
    const float2 values = __half22float2(__hmul2(*reinterpret_cast<const __half2*>(&pair), factor));
    out[i] = values.x, out[i + 4] = values.y;
  }
}

__device__ inline uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

struct DecodeMxfp4 {
  static constexpr int kColumns = 32, kAlign = 16, kTable = 0, kScaled = 4;
  static constexpr bool kIsBf16 = true, kIsF16 = false;
  using Loaded = ScaledUnit;
  using Codes = ScaledCodes;
  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    return {load_as<uint4>(w.data + row * w.row_bytes + unit * 16),
            load_as<uint8_t>(w.scale + row * w.scale_row_bytes + unit)};
  }
  static __device__ Codes codes(const Loaded& u, const Matrix&) {
    return {u.words, ue8m0_to_f32(static_cast<uint8_t>(u.scale))};
  }
  static __device__ void piece(const Codes& c, int p, const float*, float (&w)[8]) {
    widen_e2m1x8(word_of(c.words, p), w);
  }
  static __device__ float scale(const Codes& c, int) { return c.scale; }
};

struct TwiceScaledCodes {
  uint4 words;
  float scale_of[2];  // of columns 0 - 15 and 16 - 31
};
struct DecodeNvfp4 {
  static constexpr int kColumns = 32, kAlign = 16, kTable = 0, kScaled = 2;
  static constexpr bool kIsBf16 = true, kIsF16 = true;
  using Loaded = ScaledUnit;
  using Codes = TwiceScaledCodes;
  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    const std::byte* scales = w.scale + row * w.scale_row_bytes + unit * 2;
    return {load_as<uint4>(w.data + row * w.row_bytes + unit * 16),
            load_as<uint8_t>(scales) | uint32_t{load_as<uint8_t>(scales + 1)} << 8};
  }
  static __device__ Codes codes(const Loaded& u, const Matrix&) {
    Codes c{u.words, {}};
    widen_e4m3x2(u.scale, c.scale_of);
    return c;
  }
  static __device__ void piece(const Codes& c, int p, const float*, float (&w)[8]) {
    widen_e2m1x8(word_of(c.words, p), w);
  }
  static __device__ float scale(const Codes& c, int p) { return c.scale_of[p / 2]; }
};

template <int K>
struct KbitUnit {
  uint32_t plane[K];
  uint8_t scale;
};
// Byte p of word j is four times the code of column 8 p + j: the byte offset of its value in the
// codebook.
struct KbitCodes {
  uint32_t word[8];
  float scale;
};

// Bit by bit: `yes` where the mask has a 1, else `no`.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t yes, uint32_t no) {
  return (mask & yes) | (~mask & no);
}

// Gathers the planes' bits 0 to 3 into fields of doubling width: nibble q of nibbles[m] is of
// column 4 q + m.
template <int K>
__device__ inline void gather_nibbles(const uint32_t (&plane)[K], uint32_t (&nibbles)[4]) {
  // Bits 0 and 1 of the even and the odd columns; then bits 2 and 3.
  const uint32_t even = select_bits(0x55555555u, plane[0], plane[1] << 1);
  const uint32_t odd = select_bits(0x55555555u, plane[0] >> 1, plane[1]);
  uint32_t high_even = 0, high_odd = 0;
  if constexpr (K > 3) {
    high_even = select_bits(0x55555555u, plane[2], plane[3] << 1);
    high_odd = select_bits(0x55555555u, plane[2] >> 1, plane[3]);
  } else if constexpr (K == 3) {
    high_even = plane[2] & 0x55555555u;
    high_odd = (plane[2] >> 1) & 0x55555555u;
  }
  nibbles[0] = select_bits(0x33333333u, even, high_even << 2);
  nibbles[1] = select_bits(0x33333333u, odd, high_odd << 2);
  nibbles[2] = select_bits(0x33333333u, even >> 2, high_even);
  nibbles[3] = select_bits(0x33333333u, odd >> 2, high_odd);
}

template <int K>
struct DecodeKbit {
  static constexpr int kColumns = kKbitBlock, kAlign = K % 2 == 0 ? 4 * K : 4, kTable = 1 << K,
                       kScaled = 4;
  static constexpr bool kIsBf16 = true, kIsF16 = true;
  using Loaded = KbitUnit<K>;
  using Codes = KbitCodes;

  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    const std::byte* at = w.data + row * w.row_bytes + unit * (4 * K);
    Loaded u;
    if constexpr (K == 2) {
      const auto words = load_as<uint2>(at);
      u.plane[0] = words.x, u.plane[1] = words.y;
    } else if constexpr (K == 4) {
      const auto words = load_as<uint4>(at);
      for (int j = 0; j < 4; ++j) u.plane[j] = word_of(words, j);
    } else {
      for (int j = 0; j < K; ++j) u.plane[j] = load_as<uint32_t>(at + 4 * j);
    }
    u.scale = load_as<uint8_t>(w.scale + row * w.scale_row_bytes + unit);
    return u;
  }

  static __device__ Codes codes(const Loaded& u, const Matrix&) {
    uint32_t nibble[4];
    gather_nibbles<K>(u.plane, nibble);
    Codes c;
    for (int m = 0; m < 4; ++m) {
      c.word[m] = (nibble[m] << 2) & 0x3c3c3c3cu;
      c.word[m + 4] = (nibble[m] >> 2) & 0x3c3c3c3cu;
    }
    if constexpr (K == 5) {  // bit 4 of column 8 p + j goes to bit 6 of byte p
      for (int j = 0; j < 8; ++j) {
        const uint32_t bit = j < 6 ? u.plane[4] << (6 - j) : u.plane[4] >> (j - 6);
        c.word[j] |= bit & 0x40404040u;
      }
    }
    c.scale = e4m4_to_f32(u.scale);
    return c;
  }

  // table: the codebook in shared memory; its at most 32 entries lie in different banks.
  static __device__ void piece(const Codes& c, int p, const float* table, float (&w)[8]) {
    const auto* bytes = reinterpret_cast<const std::byte*>(table);
    for (int j = 0; j < 8; ++j) {
      const uint32_t offset = __byte_perm(c.word[j], 0, 0x4440u + static_cast<uint32_t>(p));
      w[j] = *reinterpret_cast<const float*>(bytes + offset);
    }
  }
  static __device__ float scale(const Codes& c, int) { return c.scale; }
};

}  // namespace dsv4::gemm::cuda
