// Bit planes of a block of 32 columns (formats/kbit.h) as e4m3 codes, four in a register, by shifts
// and logic alone: a lane has the whole block.
//
// Sorted codes become sign and magnitude; the planes of the magnitude's index are transposed as
// 4 x 4 bits, so that a nibble is an index.
//
//   K = 5   the magnitudes of e4m3_codebook(5) are 2i + 1 as an e4m3 code, i = 0 .. 15: a byte is
//           the sign, the four bits of i and a one
//   K = 4   a byte permute finds four of eight magnitudes

#pragma once

#include "dsv4/device/ptx/lop3.cuh"
#include "dsv4/device/ptx/prmt.cuh"

namespace dsv4::few_gemm {

// Bits of `a` where the mask has ones, else of `b`.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
  return ptx::lop3<(0xf0 & 0xcc) | (~0xf0 & 0xaa)>(mask, a, b);
}

// Transposes the bits of four words as 4 x 4: nibble j of word i is then of column i + 4j.
__device__ inline void transpose_bits(uint32_t (&index)[4]) {
#pragma unroll
  for (int p = 0; p < 4; p += 2) {
    const uint32_t even = index[p], odd = index[p + 1];
    index[p] = select_bits(0x55555555, even, odd << 1);
    index[p + 1] = select_bits(0x55555555, even >> 1, odd);
  }
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    const uint32_t low = index[p], high = index[p + 2];
    index[p] = select_bits(0x33333333, low, high << 2);
    index[p + 2] = select_bits(0x33333333, low >> 2, high);
  }
}

// The first half of decoding: planes become nibbles of the magnitudes' indices (the lower bits of
// the codes, inverted below zero) and signs. K = 4: nothing, since signs have no room.
__device__ inline void order_planes(uint32_t (&planes)[5]) {
  const uint32_t minus = ~planes[4];
  uint32_t index[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) index[p] = planes[p] ^ minus;
  transpose_bits(index);
#pragma unroll
  for (int p = 0; p < 4; ++p) planes[p] = index[p];
  planes[4] = minus;
}
__device__ inline void order_planes(uint32_t (&)[4]) {
}

// Ordered planes of a block. Byte j of codes[i] is the e4m3 code of column i + 8j.
__device__ inline void decode_planes(const uint32_t (&ordered)[5], uint32_t (&codes)[8]) {
  const uint32_t(&index)[5] = ordered;
  const uint32_t minus = ordered[4];
  const auto bytes = [](uint32_t magnitudes, uint32_t signs) {
    const uint32_t all = select_bits(0x80808080, signs, magnitudes);
    return ptx::lop3<(0xf0 & 0xcc) | 0xaa>(all, 0x9e9e9e9e, 0x01010101);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = bytes(index[i] << 1, minus << (7 - i));
    codes[i + 4] = bytes(index[i] >> 3, minus << (3 - i));
  }
}

// The magnitudes of e4m3_codebook(4), 11/256 .. 1, as e4m3 codes: a byte permute finds them by the
// three bits of an index.
inline constexpr uint32_t kMagnitudes[] = {0x2a262013, 0x3834312e};

// Byte j of codes[i] is the e4m3 code of column i + 4j; of codes[i + 4], of column i + 4j + 16.
__device__ inline void decode_planes(const uint32_t (&planes)[4], uint32_t (&codes)[8]) {
  const uint32_t minus = ~planes[3];
  uint32_t index[4] = {planes[0] ^ minus, planes[1] ^ minus, planes[2] ^ minus, 0};
  transpose_bits(index);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The upper nibble of byte j: nibble j of this half of the signs.
    const uint32_t twice = ptx::prmt(minus, 0, half == 0 ? 0x1100 : 0x3322);
    const uint32_t signs = select_bits(0x00f000f0, twice << 4, twice);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t magnitudes =
          ptx::prmt(kMagnitudes[0], kMagnitudes[1], half == 0 ? index[i] : index[i] >> 16);
      codes[i + 4 * half] = select_bits(0x80808080, signs << (3 - i), magnitudes);
    }
  }
}

}  // namespace dsv4::few_gemm
