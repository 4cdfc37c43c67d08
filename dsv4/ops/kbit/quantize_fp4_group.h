// One group of quantize_fp4.h, the same bits on the host and on a device: every product and sum is
// rounded on its own.
//
// Candidates are scale bytes around the plain choice, from one that cuts the largest magnitude off
// to one that makes it a 3 or 4. An e4m3 byte is a step of 6 to 12 %.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/quant_group.h"
#include "dsv4/formats/ue8m0.h"

namespace dsv4::quantize_fp4_kernel {

DSV4_HD inline float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
DSV4_HD inline double product(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
DSV4_HD inline double sum_of(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// e2m1_to_f32() without a table, which a device would keep in local memory: exponent and mantissa
// at their places in an f32 are the number over 2^126, subnormal where it is 0.5.
DSV4_HD inline float e2m1_value(uint8_t code) {
  const auto magnitude = std::bit_cast<float>(static_cast<uint32_t>(code & 7u) << 22);
  return product(magnitude, (code & 8u) != 0 ? -0x1p126f : 0x1p126f);
}

struct Fp4Group {
  const float* x;
  const float* importance;  // or null
  int count;
  bool mx;
  float scale2;

  DSV4_HD float scale(int byte) const {
    const auto code = static_cast<uint8_t>(byte);
    return mx ? ue8m0_to_f32(code) : product(e4m3_to_f32(code), scale2);
  }
  DSV4_HD static float inverse_of(float scale) { return scale > 0 ? 1 / scale : 0.f; }

  DSV4_HD int plain_byte() const {
    const float largest = absmax(x, count);
    if (largest == 0) return mx ? 127 : 0;
    if (!mx) return f32_to_e4m3(largest / kE2M1Max / scale2);
    // Exponent field less 2: 2^(b - 127) keeps `largest` below 8. Subnormal numbers have field 0.
    const int byte = static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - 2;
    return byte < 1 ? 1 : byte > 253 ? 253 : byte;
  }
  DSV4_HD uint8_t code(int i, float inverse) const { return f32_to_e2m1(product(x[i], inverse)); }

  // Squares of small weights are no f32 numbers.
  DSV4_HD double error(int byte) const {
    const float s = scale(byte), inverse = inverse_of(s);
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      const float value = product(e2m1_value(code(i, inverse)), s);
      const auto off = static_cast<double>(value - x[i]);
      const double square = product(off, off);
      sum =
          sum_of(sum, importance == nullptr ? square
                                            : product(square, static_cast<double>(importance[i])));
    }
    return sum;
  }
  DSV4_HD int searched_byte() const {
    const int plain = plain_byte();
    if (absmax(x, count) == 0) return plain;
    const int down = mx ? 1 : 6, up = mx ? 1 : 10, least_byte = mx ? 1 : 0, most = mx ? 253 : 126;
    const int first = plain - down < least_byte ? least_byte : plain - down;
    const int last = plain + up > most ? most : plain + up;
    int best = first;
    double least = error(first);
    for (int byte = first + 1; byte <= last; ++byte) {
      const double now = error(byte);
      if (now < least) least = now, best = byte;
    }
    return best;
  }

  // pairs: [count / 2]
  DSV4_HD void write(int byte, uint8_t* pairs) const {
    const float inverse = inverse_of(scale(byte));
    for (int i = 0; i < count; i += 2)
      pairs[i / 2] = e2m1_pair(code(i, inverse), code(i + 1, inverse));
  }
};

DSV4_HD inline bool finite(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u;
}
DSV4_HD inline bool all_finite(const float* x, int count) {
  bool all = true;
  for (int i = 0; i < count; ++i) all &= finite(x[i]);
  return all;
}

}  // namespace dsv4::quantize_fp4_kernel
