#include "dsv4/formats/e4m4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

// The encoder of docs/spec/lowbit.md 1.2 in double precision.
uint8_t by_the_spec(double v) {
  if (v <= 0) return 0;
  const int u = static_cast<int>(std::floor(std::log2(v)));
  const int e = std::min(std::max(u + 11, 0), 15);
  const double m =
      e > 0 ? std::rint((v / std::exp2(u) - 1) * 16) : std::rint(v / std::exp2(-10) * 16);
  return static_cast<uint8_t>(e << 4 | static_cast<int>(std::min(std::max(m, 0.0), 15.0)));
}

TEST(E4m4, GoldenValues) {  // docs/spec/lowbit.md 1.6
  EXPECT_EQ(f32_to_e4m4(1.f), 0xb0);
  EXPECT_EQ(f32_to_e4m4(.5f), 0xa0);
  EXPECT_EQ(f32_to_e4m4(.75f), 0xa8);
  EXPECT_EQ(f32_to_e4m4(.1f), 0x7a);
  EXPECT_EQ(f32_to_e4m4(.0005f), 0x08);
  EXPECT_EQ(f32_to_e4m4(31.9f), 0xff);
  EXPECT_EQ(f32_to_e4m4(40.f), 0xf4);
  EXPECT_EQ(f32_to_e4m4(0.f), 0x00);
  EXPECT_EQ(e4m4_to_f32(0x7a), 0.1015625f);
  EXPECT_EQ(e4m4_to_f32(0x08), 0x1p-11f);
  EXPECT_EQ(e4m4_to_f32(0xff), 31.f);
  EXPECT_EQ(e4m4_to_f32(0xf4), 20.f);
  EXPECT_EQ(e4m4_to_f32(0x01), 0x1p-14f);
}

TEST(E4m4, RoundTripsEveryByteAndValuesIncrease) {
  for (int byte = 0; byte < 256; ++byte) {
    const auto code = static_cast<uint8_t>(byte);
    const int e = byte >> 4, m = byte & 15;
    const double value = e > 0 ? std::exp2(e - 11) * (1 + m / 16.0) : std::exp2(-10) * m / 16;
    EXPECT_EQ(static_cast<double>(e4m4_to_f32(code)), value) << byte;
    EXPECT_EQ(f32_to_e4m4(e4m4_to_f32(code)), code);
    const float below = byte > 0 ? e4m4_to_f32(static_cast<uint8_t>(byte - 1)) : -1.f;
    EXPECT_GT(e4m4_to_f32(code), below);
  }
}

TEST(E4m4, PowersOfTwoAreExact) {
  for (int e = -14; e <= 4; ++e) {
    EXPECT_EQ(e4m4_to_f32(f32_to_e4m4(std::exp2(static_cast<float>(e)))),
              std::exp2(static_cast<float>(e)));
  }
}

TEST(E4m4, EncoderMatchesTheSpec) {
  Rng rng(7);
  for (int i = 0; i < 200000; ++i) {
    const auto value = static_cast<float>(std::exp2(rng.uniform() * 26 - 18));  // 2^-18 .. 2^8
    ASSERT_EQ(f32_to_e4m4(value), by_the_spec(static_cast<double>(value))) << value;
  }
  // Mantissa ties: halfway between two bytes rounds to the even one; above the last one, no carry.
  for (int byte = 0; byte < 255; ++byte) {
    const double tie = (static_cast<double>(e4m4_to_f32(static_cast<uint8_t>(byte))) +
                        static_cast<double>(e4m4_to_f32(static_cast<uint8_t>(byte + 1)))) /
                       2;
    EXPECT_EQ(f32_to_e4m4(static_cast<float>(tie)), by_the_spec(tie)) << byte;
  }
}

TEST(E4m4, NegativeValuesAndNanGiveZero) {
  EXPECT_EQ(f32_to_e4m4(-1.f), 0);
  EXPECT_EQ(f32_to_e4m4(-0.f), 0);
  EXPECT_EQ(f32_to_e4m4(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(f32_to_e4m4(std::numeric_limits<float>::quiet_NaN()), 0);
}

}  // namespace
}  // namespace dsv4
