// The codebook of an antisymmetric k-bit weight by bytes: what the byte permutes of
// kbit_image_{f16,e4m3,scaled}.cuh select from. Three tables:
//
//   f16    values are divided by a power of two that brings the largest into [2^top, 2^(top + 1)),
//          and rounded: a relative error of at most 2^-11, or 2^-25 of the largest value (top = 0)
//   bf16   e2m1 values, exactly
//   e4m3   values that are e4m3 numbers times one power of two, exactly

#pragma once

#include <cmath>
#include <cstdint>

#include "dsv4/formats/codebook.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"

namespace dsv4::gemm {

// A unit of a kernel image (formats/kbit_image.h).
inline constexpr int kUnitColumns = 256, kUnitRows = 16;

// Byte b of word w belongs to index 4 w + b: sign and magnitude (K <= 3), or magnitude (K >= 4).
struct KbitTable {
  uint32_t low[4] = {}, high[4] = {};
  float unit = 1;  // the power of two
};

// encode: f32 to 16 bits.
template <class Encode>
KbitTable make_table_of_two_bytes(const Codebook& book, float unit, const Encode& encode) {
  const int top = book.size() / 2;
  KbitTable table{.unit = unit};
  for (int index = 0; index < (book.bits <= 3 ? 2 * top : top); ++index) {
    const float magnitude = book.value[static_cast<size_t>(top + index % top)] / unit;
    const uint32_t bits = encode(index >= top ? -magnitude : magnitude);
    table.low[index / 4] |= (bits & 0xffu) << (8 * (index % 4));
    table.high[index / 4] |= (bits >> 8) << (8 * (index % 4));
  }
  return table;
}

inline KbitTable make_f16_table(const Codebook& book, int top_exponent) {
  return make_table_of_two_bytes(book, std::ldexp(1.f, std::ilogb(book.largest()) - top_exponent),
                                 f32_to_f16);
}
inline KbitTable make_bf16_table(const Codebook& book) {
  return make_table_of_two_bytes(book, 1, f32_to_bf16);
}

inline KbitTable make_f16_table(const Codebook& book) {
  return make_f16_table(book, 0);
}

// Brings the largest value into [128, 256): below 448 whatever its digits are.
inline float e4m3_unit(const Codebook& book) {
  return std::ldexp(1.f, std::ilogb(book.largest()) - 7);
}

// Whether a byte permute finds the values, at most eight beside the sign of K = 4, and all of them
// are exact.
inline bool fits_e4m3(const Codebook& book) {
  if (book.bits > 4 || !book.antisymmetric()) return false;
  for (const float value : book.values()) {
    const float in_units = value / e4m3_unit(book);
    if (e4m3_to_f32(f32_to_e4m3(in_units)) != in_units) return false;
  }
  return true;
}

// Byte i of `low` is the e4m3 code of index i: sign and magnitude (K <= 3), or magnitude (K = 4).
inline KbitTable make_e4m3_table(const Codebook& book) {
  const int top = book.size() / 2;
  KbitTable table{.unit = e4m3_unit(book)};
  for (int index = 0; index < (book.bits <= 3 ? 2 * top : top); ++index) {
    const float magnitude = book.value[static_cast<size_t>(top + index % top)] / table.unit;
    const uint32_t code = f32_to_e4m3(index >= top ? -magnitude : magnitude);
    table.low[index / 4] |= code << (8 * (index % 4));
  }
  return table;
}

}  // namespace dsv4::gemm
