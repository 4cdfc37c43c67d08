// Division by a number that is known before the kernel runs: one multiplication.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

// For 0 <= n < 2^31 and 1 <= divisor < 2^31. With divisor <= 2^bits the factor is 2^(31 + bits) /
// divisor and at most 1 too large, so n * factor / 2^(31 + bits) exceeds n / divisor by less than
// 2^-bits <= 1 / divisor, and its integer part is the same.
struct Divisor {
  uint32_t divisor = 1, factor = 0;
  int bits = 0;

  Divisor() : Divisor(1) {}
  explicit Divisor(int64_t n) : divisor(static_cast<uint32_t>(n)) {
    while (uint64_t{1} << bits < divisor) ++bits;
    factor = static_cast<uint32_t>((uint64_t{1} << (31 + bits)) / divisor + 1);
  }
  DSV4_HD uint32_t divide(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * factor >> (31 + bits));
  }
};

}  // namespace dsv4
