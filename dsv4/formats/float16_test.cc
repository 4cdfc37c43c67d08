#include "dsv4/formats/float16.h"

#include <gtest/gtest.h>

#include "tests/harness/nearest_code.h"

namespace dsv4 {
namespace {

static_assert(bf16_to_f32(0x3f80) == 1.f && f32_to_bf16(-2.f) == 0xc000);
static_assert(round_to_bf16(1.f + 0x1p-8f) == 1.f && round_to_bf16(1.f + 0x3p-8f) == 1.f + 0x1p-6f);
static_assert(f16_to_f32(0x3c00) == 1.f && f16_to_f32(0x7bff) == 65504.f);
static_assert(f16_to_f32(0x0001) == 0x1p-24f);

// A sign, `exponent_bits`, `mantissa_bits`, IEEE bias. Infinity is taken as the power of two that
// would follow the largest number, where rounding to infinity begins.
double formula(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double fraction =
      std::ldexp(static_cast<double>(code & ((1u << mantissa_bits) - 1)), -mantissa_bits);
  const double magnitude =
      exponent > 0 ? std::ldexp(1 + fraction, exponent - bias) : std::ldexp(fraction, 1 - bias);
  return (code & 0x8000) != 0 ? -magnitude : magnitude;
}

void check_decoder(float (*decode)(uint16_t), int exponent_bits, int mantissa_bits) {
  const uint32_t inf = ((1u << exponent_bits) - 1) << mantissa_bits;
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = decode(static_cast<uint16_t>(code));
    ASSERT_EQ(std::signbit(value), code >= 0x8000) << code;
    if ((code & 0x7fff) > inf) {
      ASSERT_TRUE(std::isnan(value)) << code;
    } else if ((code & 0x7fff) == inf) {
      ASSERT_TRUE(std::isinf(value)) << code;
    } else {
      ASSERT_EQ(static_cast<double>(value), formula(code, exponent_bits, mantissa_bits)) << code;
    }
  }
}

TEST(BF16, DecodesEveryCode) {
  check_decoder([](uint16_t c) { return bf16_to_f32(c); }, 8, 7);
}
TEST(F16, DecodesEveryCode) {
  check_decoder([](uint16_t c) { return f16_to_f32(c); }, 5, 10);
}

const test::NearestCode& nearest_code() {
  static const test::NearestCode nearest(0x7f80, [](uint32_t c) { return formula(c, 8, 7); });
  return nearest;
}

void check_encoder(float v) {
  const uint16_t code = f32_to_bf16(v);
  ASSERT_EQ(code >= 0x8000, std::signbit(v)) << v;
  if (std::isnan(v)) {
    ASSERT_TRUE(std::isnan(bf16_to_f32(code)));
  } else {
    ASSERT_EQ(code & 0x7fffu, nearest_code()(std::abs(static_cast<double>(v)))) << v;
  }
}

TEST(BF16, RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = bf16_to_f32(static_cast<uint16_t>(code));
    // A signaling NaN is returned as a quiet NaN.
    const uint32_t want = std::isnan(value) ? code | 0x40 : code;
    ASSERT_EQ(f32_to_bf16(value), want);
  }
}

TEST(BF16, EncodesEdges) {
  for (const float v : nearest_code().edges()) {
    check_encoder(v);
    check_encoder(-v);
  }
}

TEST(BF16, EncodesRandomFloats) {
  test::for_random_floats(2'000'000, 3, check_encoder);
}

TEST(BF16, KeepsNanWhosePayloadIsInTheLowBits) {
  for (const uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const uint16_t code = f32_to_bf16(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(bf16_to_f32(code))) << bits;
    EXPECT_EQ(code >> 15, bits >> 31) << bits;
  }
}

const test::NearestCode& nearest_f16() {
  static const test::NearestCode nearest(0x7c00, [](uint32_t c) { return formula(c, 5, 10); });
  return nearest;
}

void check_f16_encoder(float v) {
  const uint16_t code = f32_to_f16(v);
  ASSERT_EQ(code >= 0x8000, std::signbit(v)) << v;
  if (std::isnan(v)) {
    ASSERT_TRUE(std::isnan(f16_to_f32(code)));
  } else {
    ASSERT_EQ(code & 0x7fffu, nearest_f16()(std::abs(static_cast<double>(v)))) << v;
  }
}

TEST(F16, RoundTripsEveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const float value = f16_to_f32(static_cast<uint16_t>(code));
    // NaN is returned without its payload.
    ASSERT_EQ(f32_to_f16(value), std::isnan(value) ? (code & 0x8000) | 0x7e00 : code);
  }
}

TEST(F16, EncodesEdgesAndRandomFloats) {
  for (const float v : nearest_f16().edges()) {
    check_f16_encoder(v);
    check_f16_encoder(-v);
  }
  test::for_random_floats(2'000'000, 4, check_f16_encoder);
}

}  // namespace
}  // namespace dsv4
