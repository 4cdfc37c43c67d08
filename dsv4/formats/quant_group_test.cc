#include "dsv4/formats/quant_group.h"

#include <gtest/gtest.h>

#include <array>

#include "dsv4/formats/float16.h"
#include "tests/harness/nearest_code.h"

namespace dsv4 {
namespace {

constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// docs/spec/dsv4.md B.3.
static_assert(ue8m0_to_f32(0x7f) == 1.f && ue8m0_to_f32(0x78) == 0x1p-7f);
static_assert(q8_scale(3.f) == 0x78 && q8_scale(448.f) == 0x7f && q8_scale(0.f) == 127 - 22);
static_assert(q4_scale(6.f) == 127 && q4_scale(6.5f) == 128 && q4_scale(0.f) == 1);
// No finite input gives the smallest or largest scale, so every scale and every inverse is a normal
// float.
static_assert(q8_scale(kMost) == 247 && q4_scale(kMost) == 253);

TEST(UE8M0, DecodesEveryCode) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(static_cast<double>(ue8m0_to_f32(static_cast<uint8_t>(code))),
              std::ldexp(1.0, code - 127));
  }
  EXPECT_TRUE(std::isnan(ue8m0_to_f32(255)));
}

// The smallest power of two >= z from the real number; 2^-126 is the smallest normal scale.
int ceil_exponent(float z) {
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(z), &exponent);  // [0.5, 1) * 2^exponent
  return std::max(fraction == 0.5 ? exponent - 1 : exponent, -126);
}

TEST(UE8M0, PowerOfTwoAbove) {
  const auto check = [](float z) {
    ASSERT_EQ(pow2ceil_ue8m0(z), std::min(ceil_exponent(z) + 127, 254)) << z;
  };
  for (int e = -149; e < 128; ++e) {
    const auto power = static_cast<float>(std::ldexp(1.0, e));
    check(power);
    check(std::nextafter(power, kInf));
    if (e > -149) check(std::nextafter(power, 0.f));
  }
  test::for_random_floats(1'000'000, 1, [&](float v) {
    if (std::isfinite(v) && v != 0) check(std::abs(v));
  });
}

TEST(Scales, InverseIsExactForEveryScale) {
  Rng rng(1);
  for (int code = 0; code < 255; ++code) {
    const auto scale = static_cast<uint8_t>(code);
    EXPECT_EQ(ue8m0_to_f32(scale) * inverse_scale(scale), 1.f) << code;
    for (int i = 0; i < 2000; ++i) {
      const auto x = std::bit_cast<float>(static_cast<uint32_t>(rng.bits()));
      if (std::isnan(x)) continue;
      // Both round the same real number once, subnormal and infinite results included.
      ASSERT_EQ(std::bit_cast<uint32_t>(x * inverse_scale(scale)),
                std::bit_cast<uint32_t>(x / ue8m0_to_f32(scale)))
          << x << " scale " << code;
    }
  }
  EXPECT_TRUE(std::isnan(inverse_scale(255)));
}

TEST(Scales, GroupMaximaAtPowersOfTwo) {
  for (int k = -22; k <= 119; ++k) {
    const auto amax = static_cast<float>(std::ldexp(448.0, k));
    EXPECT_EQ(q8_scale(amax), k + 127) << k;
  }
  for (int k = -126; k <= 125; ++k) {
    const auto amax = static_cast<float>(std::ldexp(6.0, k));
    EXPECT_EQ(q4_scale(amax), k + 127) << k;
    // One ulp more needs the next scale, which only the f32 nearest to 1/6 gives.
    EXPECT_EQ(q4_scale(std::nextafter(amax, kInf)), k + 128) << k;
  }
}

TEST(Scales, ProductAndQuotientAgreeForEveryBf16) {
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float a = bf16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(q8_scale(a), pow2ceil_ue8m0(std::max(a, 1e-4f) / 448.f)) << a;
    ASSERT_EQ(q4_scale(a), pow2ceil_ue8m0(std::max(a, 6 * 0x1p-126f) / 6.f)) << a;
  }
}

struct Format {
  test::NearestCode nearest;
  double most;
  float floor;
};

// Quantizes one group both ways.
template <int kSize>
void check_group(const std::array<float, kSize>& x) {
  static const Format q8{
      {0x7e, [](uint32_t c) { return e4m3_to_f32(static_cast<uint8_t>(c)); }}, 448, 1e-4f};
  static const Format q4{
      {7, [](uint32_t c) { return e2m1_to_f32(static_cast<uint8_t>(c)); }}, 6, 6 * 0x1p-126f};
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::abs(v));
  std::array<uint8_t, kSize> codes{};
  std::array<uint8_t, kSize / 2> pairs{};
  const auto scale_of = [&](const Format& format) {
    return ceil_exponent(std::max(amax, format.floor) * (1.f / static_cast<float>(format.most)));
  };
  const auto want = [&](const Format& format, float v) {
    const double scaled = std::ldexp(std::abs(static_cast<double>(v)), -scale_of(format));
    return format.nearest(std::min(scaled, format.most));
  };
  ASSERT_EQ(quantize_group_q8(x.data(), kSize, codes.data()), scale_of(q8) + 127) << amax;
  ASSERT_EQ(quantize_q4(x.data(), kSize, pairs.data()), scale_of(q4) + 127) << amax;
  for (size_t i = 0; i < kSize; ++i) {
    const uint32_t sign = std::signbit(x[i]) ? 1 : 0;
    ASSERT_EQ(codes[i], want(q8, x[i]) | sign << 7) << x[i] << " of " << amax;
    ASSERT_EQ(e2m1_code(pairs[i / 2], static_cast<int>(i)), want(q4, x[i]) | sign << 3) << x[i];
  }
}

TEST(Groups, MatchTheDefinition) {
  Rng rng(7);
  for (int round = 0; round < 20'000; ++round) {
    std::array<float, 32> x{};
    const int exponent = static_cast<int>(rng.below(250)) - 124;
    for (float& v : x) v = static_cast<float>(std::ldexp(rng.uniform(-1, 1), exponent));
    if (round % 4 == 0) x[5] = static_cast<float>(std::ldexp(0.875, exponent));  // 448 * 2^k
    if (round % 4 == 1) x[6] = static_cast<float>(std::ldexp(-0.75, exponent));  // 6 * 2^k
    check_group<32>(x);
  }
}

TEST(Groups, FloorsAndLargestFloats) {
  for (const float v : {0.f, -0.f, 1e-4f, 0.9e-4f, 1e-30f, std::numeric_limits<float>::denorm_min(),
                        kMost, -kMost, kMost / 2}) {
    std::array<float, 4> x{v, 1.f, 0.f, v / 3};
    if (std::abs(v) < 1) x[1] = v / 2;
    check_group<4>(x);
  }
}

TEST(Groups, InfinityAndNan) {
  const std::array<float, 4> x{1.f, kNan, -kNan, 448.f};
  std::array<uint8_t, 4> codes{};
  EXPECT_EQ(quantize_group_q8(x.data(), 4, codes.data()), 127) << "NaN affects the scale";
  EXPECT_EQ(codes, (std::array<uint8_t, 4>{0x38, 0x7f, 0xff, 0x7e}));
  const std::array<float, 2> y{-kInf, 1.f};
  EXPECT_EQ(quantize_group_q8(y.data(), 2, codes.data()), 254);
  EXPECT_EQ(codes[0], 0xfe);
  EXPECT_EQ(codes[1], 0);
  EXPECT_EQ(quantize_q4(y.data(), 2, codes.data()), 254);
  EXPECT_EQ(codes[0], 0x0f);
}

}  // namespace
}  // namespace dsv4
