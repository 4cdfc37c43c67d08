#include "dsv4/formats/codebook.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/formats/e2m1.h"

namespace dsv4 {
namespace {

// Positive halves, ascending. The nf values are float32 bit patterns (they equal scipy's).
constexpr uint32_t kNf2[] = {0x3e8dd21a, 0x3f800000};
constexpr uint32_t kNf3[] = {0x3dd20129, 0x3ea32005, 0x3f1409f5, 0x3f800000};
constexpr uint32_t kNf4[] = {0x3d2c6c36, 0x3e0265ad, 0x3e5d2107, 0x3e9f2ee8,
                             0x3ed56949, 0x3f0ace38, 0x3f35233b, 0x3f800000};
constexpr uint32_t kNf5[] = {0x3c950060, 0x3d5ff631, 0x3dbb691d, 0x3e04052d, 0x3e2b36ba, 0x3e539bdb,
                             0x3e7d9849, 0x3e94d4a9, 0x3eac39a3, 0x3ec56bf3, 0x3ee10f82, 0x3f001198,
                             0x3f122cf2, 0x3f288359, 0x3f4731dc, 0x3f800000};
constexpr float kBnf2[] = {.1964f, .6642f};
constexpr float kBnf3[] = {.1018f, .3141f, .5583f, .8827f};
constexpr float kBnf4[] = {.0499f, .1509f, .2551f, .3652f, .4846f, .6179f, .7739f, .9686f};
constexpr float kBnf5[] = {.0239f, .0718f, .1201f, .1692f, .2193f, .2707f, .3239f, .3791f,
                           .4369f, .4977f, .5625f, .6321f, .7078f, .7913f, .8850f, .9920f};

// Values of 4 significant bits each. SQNR of Gaussian blocks with searched scales (bnf in
// parentheses): 9.80 (9.80), 15.87 (15.90), 22.14 (22.23), 27.31 dB (28.40). Experts that were
// trained as FP4 are nearer with an end of 1 (docs/quality.md).
constexpr float kE4m3Of2[] = {13 / 64.f, 11 / 16.f};
constexpr float kE4m3Of3[] = {13 / 128.f, 5 / 16.f, 9 / 16.f, 1.f};
constexpr float kE4m3Of4[] = {11 / 256.f, 1 / 8.f,  7 / 32.f, 5 / 16.f,
                              7 / 16.f,   9 / 16.f, 3 / 4.f,  1.f};
constexpr float kE4m3Of5[] = {1 / 64.f,  3 / 64.f,  5 / 64.f,  7 / 64.f,  9 / 64.f,  11 / 64.f,
                              13 / 64.f, 15 / 64.f, 18 / 64.f, 22 / 64.f, 26 / 64.f, 30 / 64.f,
                              36 / 64.f, 44 / 64.f, 52 / 64.f, 60 / 64.f};

constexpr std::span<const uint32_t> kNf[] = {kNf2, kNf3, kNf4, kNf5};
constexpr std::span<const float> kBnf[] = {kBnf2, kBnf3, kBnf4, kBnf5};
constexpr std::span<const float> kE4m3[] = {kE4m3Of2, kE4m3Of3, kE4m3Of4, kE4m3Of5};

// Mirrors a positive half: value i of the half becomes the value of codes n/2 + i and, negated,
// n/2 - 1 - i.
template <class Value>
Codebook mirrored(int bits, const Value& positive) {
  Codebook book{.bits = bits};
  const auto half = static_cast<size_t>(book.size() / 2);
  for (size_t i = 0; i < half; ++i) {
    book.value[half + i] = positive(i);
    book.value[half - 1 - i] = -positive(i);
  }
  return book;
}

size_t table_index(int bits) {
  DSV4_CHECK(is_kbit(bits), "a codebook has 2 to 5 bits, not {}", bits);
  return static_cast<size_t>(bits - kMinKbit);
}

}  // namespace

float Codebook::largest() const {
  return std::max(std::abs(values().front()), std::abs(values().back()));
}

bool Codebook::antisymmetric() const {
  for (size_t i = 0; i < values().size(); ++i) {
    const float mirror = -value[values().size() - 1 - i];
    if (std::bit_cast<uint32_t>(value[i]) != std::bit_cast<uint32_t>(mirror)) return false;
  }
  return true;
}

Codebook nf_codebook(int bits) {
  const std::span<const uint32_t> half = kNf[table_index(bits)];
  return mirrored(bits, [&](size_t i) { return std::bit_cast<float>(half[i]); });
}

Codebook bnf_codebook(int bits) {
  const std::span<const float> half = kBnf[table_index(bits)];
  return mirrored(bits, [&](size_t i) { return half[i]; });
}

Codebook e2m1_codebook() {
  return mirrored(4, [](size_t i) { return e2m1_to_f32(static_cast<uint8_t>(i)) / 8; });
}

Codebook e4m3_codebook(int bits) {
  const std::span<const float> half = kE4m3[table_index(bits)];
  return mirrored(bits, [&](size_t i) { return half[i]; });
}

bool is_e4m3_codebook(std::span<const float> values) {
  const int bits = std::countr_zero(values.size());
  return std::has_single_bit(values.size()) && is_kbit(bits) &&
         std::ranges::equal(values, e4m3_codebook(bits).values());
}

Codebook user_codebook(std::span<const float> values) {
  const int bits = std::countr_zero(values.size());
  if (!std::has_single_bit(values.size()) || !is_kbit(bits))
    fail(ErrorCode::kBadInput, "a codebook has 4, 8, 16 or 32 values, not {}", values.size());
  Codebook book{.bits = bits};
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]) || (i > 0 && values[i] < values[i - 1]))
      fail(ErrorCode::kBadInput, "codebook value {} is {}: want finite values in ascending order",
           i, values[i]);
    book.value[i] = values[i];
  }
  if (book.largest() == 0) fail(ErrorCode::kBadInput, "all values of the codebook are zero");
  return book;
}

}  // namespace dsv4
