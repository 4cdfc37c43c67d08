#include "dsv4/formats/e2m1.h"

#include <gtest/gtest.h>

#include "dsv4/formats/float16.h"
#include "tests/harness/nearest_code.h"

namespace dsv4 {
namespace {

// Byte 0x5a of docs/spec/dsv4.md B.3: the even k has the low nibble.
static_assert(e2m1_to_f32(e2m1_code(0x5a, 0)) == -1.f && e2m1_to_f32(e2m1_code(0x5a, 1)) == 3.f);
static_assert(e2m1_pair(0xa, 0x5) == 0x5a);
// The ties of docs/spec/dsv4.md 13.4.
static_assert(e2m1_to_f32(f32_to_e2m1(0.25f)) == 0.f && e2m1_to_f32(f32_to_e2m1(0.75f)) == 1.f);
static_assert(e2m1_to_f32(f32_to_e2m1(1.25f)) == 1.f && e2m1_to_f32(f32_to_e2m1(1.75f)) == 2.f);
static_assert(e2m1_to_f32(f32_to_e2m1(2.5f)) == 2.f && e2m1_to_f32(f32_to_e2m1(3.5f)) == 4.f);
static_assert(e2m1_to_f32(f32_to_e2m1(5.f)) == 4.f);

// Two exponent bits with bias 1, one mantissa bit.
double formula(uint32_t code) {
  const int exponent = static_cast<int>(code >> 1 & 3), mantissa = static_cast<int>(code & 1);
  const double magnitude =
      exponent > 0 ? std::ldexp(1 + mantissa / 2.0, exponent - 1) : mantissa / 2.0;
  return (code & 8) != 0 ? -magnitude : magnitude;
}

uint8_t want_code(float v) {
  static const test::NearestCode nearest(7, formula);
  if (std::isnan(v)) return 7;
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 8 : 0);
  return sign | static_cast<uint8_t>(nearest(std::abs(static_cast<double>(v))));
}

TEST(E2M1, RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 16; ++code) {
    const float value = e2m1_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), formula(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 8) << code;
    EXPECT_EQ(f32_to_e2m1(value), code);
  }
}

TEST(E2M1, EncodesEdges) {
  for (const float v : test::NearestCode(7, formula).edges()) {
    EXPECT_EQ(f32_to_e2m1(v), want_code(v)) << v;
    EXPECT_EQ(f32_to_e2m1(-v), want_code(-v)) << -v;
  }
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_e2m1(inf), 7);
  EXPECT_EQ(f32_to_e2m1(-inf), 15);
}

TEST(E2M1, EncodesEveryBf16AndRandomFloats) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float v = bf16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(f32_to_e2m1(v), want_code(v)) << v;
  }
  test::for_random_floats(1'000'000, 1,
                          [](float v) { ASSERT_EQ(f32_to_e2m1(v), want_code(v)) << v; });
  Rng rng(2);
  for (int i = 0; i < 1'000'000; ++i) {
    const auto v = static_cast<float>(rng.uniform(-8, 8));
    ASSERT_EQ(f32_to_e2m1(v), want_code(v)) << v;
  }
}

TEST(E2M1, PairsKeepBothNibbles) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto pair = static_cast<uint8_t>(byte);
    EXPECT_EQ(e2m1_code(pair, 6), byte & 15);
    EXPECT_EQ(e2m1_code(pair, 7), byte >> 4);
    EXPECT_EQ(e2m1_pair(e2m1_code(pair, 0), e2m1_code(pair, 1)), byte);
  }
}

}  // namespace
}  // namespace dsv4
