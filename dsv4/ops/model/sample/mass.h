// Probabilities as integers, for sample.h: the same bits on every machine and in any order of
// additions.
//
//   weight(l) = round(2^bits * 2^x),  x = (l - largest) * log2(e) / temperature
//
// All of a row's weights together stay below 2^63. Only additions, multiplications, divisions and
// fused multiplications and additions of f64 lead to a weight, each written as it is computed: 2^x
// is 2^(n/128), from a table, times a Taylor polynomial of degree 4 in the rest, with a relative
// error below 2^-49.

#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::sample_kernel {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLog2E = 0x1.71547652b82fep+0;
inline constexpr int kExp2Steps = 128;  // of the table, per doubling
using Exp2Table = std::array<double, kExp2Steps>;

// 2^(j / 128) as the product of the roots that the bits of j name; off by at most 7 roundings.
constexpr Exp2Table make_exp2_table() {
  constexpr double kRoots[] = {0x1.0163da9fb3335p+0, 0x1.02c9a3e778061p+0, 0x1.059b0d3158574p+0,
                               0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.306fe0a31b715p+0,
                               0x1.6a09e667f3bcdp+0};
  Exp2Table table{};
  for (size_t j = 0; j < table.size(); ++j) {
    table[j] = 1;
    for (size_t bit = 0; bit < 7; ++bit)
      if ((j >> bit & 1) != 0) table[j] *= kRoots[bit];
  }
  return table;
}
inline constexpr Exp2Table kExp2Table = make_exp2_table();

// One rounding each, on the device too.
DSV4_HD inline double add(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
DSV4_HD inline double mul(double a, double b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

// a * b + c, rounded once.
DSV4_HD inline double fused(double a, double b, double c) {
#ifdef __CUDA_ARCH__
  return __fma_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

// What 2^x takes besides its table; c: Taylor coefficients of 2^(r / 128).
struct MassConstants {
  double round = 0x1.8p52, integer = 0x1p52;  // adding it rounds; its last bit counts ones
  double c1 = kLn2 / kExp2Steps, c2 = c1 * c1 / 2, c3 = c2 * c1 / 3, c4 = c3 * c1 / 4;
};
inline constexpr MassConstants kMassConstants{};
#ifdef __CUDACC__
// Operands of an instruction where they lie. A literal is moved to two uniform registers first, so
// these are not const.
static __constant__ MassConstants device_mass_constants = kMassConstants;
#endif

// 46 for a vocabulary of up to 131,071 tokens.
DSV4_HD constexpr int mass_bits(int64_t v) {
  int width = 0;
  while (v >> width != 0) ++width;
  return width <= 17 ? 46 : 63 - width;
}

// Weights of the tokens of a row.
struct Weights {
  float largest;   // finite
  double deepest;  // -bits * kExp2Steps / steps: below this distance weights are 0
  double steps;    // kExp2Steps * log2(e) / temperature
  int bits;        // of the largest weight
  uint64_t least;  // smaller weights count as 0

  // exp2_table: kExp2Table, where the caller reads it fastest
  DSV4_HD uint64_t of(float logit, const double* exp2_table) const {
    const double below = add(static_cast<double>(logit), -static_cast<double>(largest));
    const bool counts = below >= deepest;
#ifdef __CUDA_ARCH__
    // No branch: a thread computes several weights side by side.
    const MassConstants& c = device_mass_constants;
#else
    if (!counts) return 0;
    constexpr MassConstants c{};
#endif
    const double shifted = fused(below, steps, c.round);
    const auto n = static_cast<int32_t>(static_cast<uint32_t>(std::bit_cast<uint64_t>(shifted)));
    const double r = fused(below, steps, -add(shifted, -c.round));  // |r| <= 1/2 step
    double p = fused(r, c.c4, c.c3);
    p = fused(r, p, c.c2);
    p = fused(r, p, c.c1);
    p = fused(r, p, 1);
    p = mul(p, exp2_table[n & (kExp2Steps - 1)]);
    const auto exponent = static_cast<uint32_t>(bits + (n >> 7));
    const double scaled =
        std::bit_cast<double>(std::bit_cast<uint64_t>(p) + (uint64_t{exponent} << 52));
    const uint64_t rounded = std::bit_cast<uint64_t>(add(scaled, c.integer));
    const uint64_t weight = rounded & ((uint64_t{1} << 52) - 1);
    return counts && weight >= least ? weight : 0;
  }
};

// The smallest integer that is not less than x; 0 <= x < 2^63.
DSV4_HD inline uint64_t round_up(double x) {
  const auto whole = static_cast<uint64_t>(x);
  return static_cast<double>(whole) < x ? whole + 1 : whole;
}

// temperature > 0; min_p in [0, 1]
DSV4_HD inline Weights weights_of(float largest, float temperature, float min_p, int bits) {
  const uint64_t least =
      round_up(static_cast<double>(min_p) * static_cast<double>(uint64_t{1} << bits));
  const double steps = kExp2Steps * kLog2E / static_cast<double>(temperature);
  return {.largest = largest,
          .deepest = -static_cast<double>(bits * kExp2Steps) / steps,
          .steps = steps,
          .bits = bits,
          .least = least > 1 ? least : 1};
}

// The mass that the kept tokens must reach: top_p of `mass`, at least 1.
DSV4_HD inline uint64_t mass_to_keep(float top_p, uint64_t mass) {
  const uint64_t wanted = round_up(mul(static_cast<double>(top_p), static_cast<double>(mass)));
  return wanted < 1 ? 1 : wanted > mass ? mass : wanted;
}

// floor(u * mass) for u = draw / 2^53.
DSV4_HD inline uint64_t position_of(uint64_t draw, uint64_t mass) {
#ifdef __CUDA_ARCH__
  const uint64_t high = __umul64hi(draw, mass);
#else
  const auto high = static_cast<uint64_t>((static_cast<unsigned __int128>(draw) * mass) >> 64);
#endif
  return high << 11 | (draw * mass) >> 53;
}

// ln(mass / 2^bits) for mass >= 2^bits: ln of the fraction as a series in (g - 1) / (g + 1).
DSV4_HD inline double ln_of_mass(uint64_t mass, int bits) {
  const auto code = std::bit_cast<uint64_t>(static_cast<double>(mass));
  int exponent = static_cast<int>(code >> 52) - 1023 - bits;
  double g = std::bit_cast<double>((code & ((uint64_t{1} << 52) - 1)) | uint64_t{1023} << 52);
  if (g > 1.4142135623730951) g *= 0.5, ++exponent;
  const double z = add(g, -1) / add(g, 1), zz = mul(z, z);
  double series = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int k = 10; k >= 0; --k) series = add(1.0 / (2 * k + 1), mul(zz, series));
  return add(mul(static_cast<double>(exponent), kLn2), mul(mul(2, z), series));
}

DSV4_HD inline float logprob_of(float logit, float largest, double ln_mass) {
  const double below = add(static_cast<double>(logit), -static_cast<double>(largest));
  return static_cast<float>(add(below, -ln_mass));
}

}  // namespace dsv4::sample_kernel
