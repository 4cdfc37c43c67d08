#include "dsv4/formats/e4m3.h"

#include <gtest/gtest.h>

#include "dsv4/formats/float16.h"
#include "tests/harness/nearest_code.h"

namespace dsv4 {
namespace {

static_assert(e4m3_to_f32(0x38) == 1.f && e4m3_to_f32(0xb8) == -1.f);
static_assert(e4m3_to_f32(0x7e) == 448.f && e4m3_to_f32(0x01) == 0x1p-9f);
static_assert(f32_to_e4m3(448.f) == 0x7e && f32_to_e4m3(1e9f) == 0x7e &&
              f32_to_e4m3(-1e9f) == 0xfe);
static_assert(f32_to_e4m3(384.f) == 0x7c && f32_to_e4m3(12.8125f) == f32_to_e4m3(13.f));

// (-1)^s 2^(e-7) (1 + m/8), or 2^-6 m/8 for e = 0.
double formula(uint32_t code) {
  const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
  const double magnitude =
      exponent > 0 ? std::ldexp(1 + mantissa / 8.0, exponent - 7) : std::ldexp(mantissa / 8.0, -6);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// The code that the encoder must return for any float.
uint8_t want_code(const test::NearestCode& nearest, float v) {
  const auto sign = static_cast<uint8_t>(std::signbit(v) ? 0x80 : 0);
  if (std::isnan(v)) return sign | 0x7f;
  return sign | static_cast<uint8_t>(nearest(std::abs(static_cast<double>(v))));
}

const test::NearestCode& nearest_code() {
  static const test::NearestCode nearest(0x7e, formula);
  return nearest;
}

TEST(E4M3, DecodesEveryCode) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(value), formula(code)) << code;
    }
  }
}

TEST(E4M3, RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 256; ++code) {
    EXPECT_EQ(f32_to_e4m3(e4m3_to_f32(static_cast<uint8_t>(code))), code);
  }
}

TEST(E4M3, EncodesEdges) {
  for (const float v : nearest_code().edges()) {
    EXPECT_EQ(f32_to_e4m3(v), want_code(nearest_code(), v)) << v;
    EXPECT_EQ(f32_to_e4m3(-v), want_code(nearest_code(), -v)) << -v;
  }
  const float inf = std::numeric_limits<float>::infinity();
  const float most = std::numeric_limits<float>::max();
  for (const float v : {inf, most, 463.9f, 464.f, 465.f, 480.f, 512.f}) {
    EXPECT_EQ(f32_to_e4m3(v), 0x7e) << v;
    EXPECT_EQ(f32_to_e4m3(-v), 0xfe) << v;
  }
}

TEST(E4M3, EncodesEveryBf16) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float v = bf16_to_f32(static_cast<uint16_t>(bits));
    ASSERT_EQ(f32_to_e4m3(v), want_code(nearest_code(), v)) << v;
  }
}

TEST(E4M3, EncodesRandomFloats) {
  test::for_random_floats(
      2'000'000, 1, [](float v) { ASSERT_EQ(f32_to_e4m3(v), want_code(nearest_code(), v)) << v; });
  Rng rng(2);
  for (int i = 0; i < 1'000'000; ++i) {  // within the range of the codes
    const auto v =
        static_cast<float>(std::ldexp(rng.uniform(-1, 1), static_cast<int>(rng.below(22)) - 12));
    ASSERT_EQ(f32_to_e4m3(v), want_code(nearest_code(), v)) << v;
  }
}

}  // namespace
}  // namespace dsv4
