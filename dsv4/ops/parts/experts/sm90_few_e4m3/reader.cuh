// Antisymmetric codebooks whose values are e4m3 numbers times one power of two, as e4m3 codes.

#pragma once

#include <cmath>

#include "dsv4/formats/e4m3.h"
#include "dsv4/ops/parts/experts/sm90_few/call.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/config.cuh"

namespace dsv4::experts_few_e4m3 {

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
inline experts_few::Table make_table(const Codebook& book) {
  const int top = book.size() / 2;
  experts_few::Table table{.unit = e4m3_unit(book)};
  for (int index = 0; index < (book.bits <= 3 ? 2 * top : top); ++index) {
    const float magnitude = book.value[static_cast<size_t>(top + index % top)] / table.unit;
    const uint32_t code = f32_to_e4m3(index >= top ? -magnitude : magnitude);
    table.low[index / 4] |= code << (8 * (index % 4));
  }
  return table;
}

inline constexpr experts_few::Reader kReader{make_table, [](int) { return kStrips; }, kOwnPairs};

}  // namespace dsv4::experts_few_e4m3
