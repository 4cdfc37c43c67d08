#include "dsv4/cpu/quant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/quant_group.h"
#include "tests/harness/targets.h"

namespace dsv4::cpu {
namespace {

uint32_t bits(float v) {
  return std::bit_cast<uint32_t>(v);
}

// Group maxima over the whole range of floats, ties of both grids, zeros of both signs, NaN and
// infinities.
std::vector<float> values(int64_t n, Rng& rng) {
  std::vector<float> x;
  const int exponent = static_cast<int>(rng.below(274)) - 147;
  const int64_t kind = rng.below(4);
  for (int64_t i = 0; i < n; ++i) {
    const auto uniform = static_cast<float>(std::ldexp(rng.uniform(-1, 1), exponent));
    const auto tie =
        static_cast<float>(std::ldexp(static_cast<double>(rng.below(63) - 31), exponent - 5));
    x.push_back(kind == 0   ? uniform
                : kind == 1 ? tie
                : kind == 2 ? -0.f
                            : std::bit_cast<float>(static_cast<uint32_t>(rng.bits())));
  }
  return x;
}

// Compares bit for bit with the scalar definitions of formats/quant_group.h.
void check_row(const std::vector<float>& x, int64_t group) {
  const auto k = static_cast<int64_t>(x.size());
  std::vector<uint8_t> codes(x.size() + 1, 0xee), scales(x.size() + 1, 0xee);
  std::vector<float> s8(x.size() + 1, 7.f), s4 = s8;
  quantize_q8_row(x.data(), k, group, codes.data(), scales.data());
  fake_q8_row(x.data(), k, group, s8.data());
  fake_q4_row(x.data(), k, group, s4.data());
  for (int64_t begin = 0; begin < k; begin += group) {
    const int64_t n = std::min(group, k - begin);
    std::vector<uint8_t> want(static_cast<size_t>(n));
    const uint8_t scale = quantize_group_q8(x.data() + begin, static_cast<int>(n), want.data());
    const uint8_t scale4 = q4_scale(absmax(x.data() + begin, static_cast<int>(n)));
    ASSERT_EQ(scales[static_cast<size_t>(begin / group)], scale);
    for (int64_t j = 0; j < n; ++j) {
      const auto i = static_cast<size_t>(begin + j);
      ASSERT_EQ(codes[i], want[static_cast<size_t>(j)]) << x[i] << " scale " << int{scale};
      ASSERT_EQ(bits(s8[i]), bits(e4m3_to_f32(codes[i]) * ue8m0_to_f32(scale))) << x[i];
      const uint8_t code4 = f32_to_e2m1(x[i] * inverse_scale(scale4));
      ASSERT_EQ(bits(s4[i]), bits(e2m1_to_f32(code4) * ue8m0_to_f32(scale4))) << x[i];
    }
  }
  ASSERT_TRUE(codes.back() == 0xee && s8.back() == 7.f && s4.back() == 7.f) << "one past the end";
  ASSERT_EQ(scales[static_cast<size_t>((k + group - 1) / group)], 0xee);
}

TEST(Quant, RowsMatchTheDefinitionBitForBit) {
  test::for_each_target([] {
    Rng rng(1);
    for (int64_t n = 0; n <= 70; ++n) {
      for (const int64_t group : {1, 7, 32, 64, 128}) {
        for (int round = 0; round < 8; ++round) check_row(values(n, rng), group);
      }
    }
    for (int round = 0; round < 500; ++round) check_row(values(200, rng), 128);
  });
}

TEST(Quant, FakeRowsWorkInPlace) {
  test::for_each_target([] {
    Rng rng(2);
    std::vector<float> x = values(100, rng), out(100);
    fake_q8_row(x.data(), 100, 64, out.data());
    fake_q8_row(x.data(), 100, 64, x.data());
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(bits(x[i]), bits(out[i]));
  });
}

// The butterflies, one at a time.
std::vector<float> hadamard(std::vector<float> x) {
  const size_t n = x.size();
  for (size_t h = 1; h < n; h *= 2) {
    for (size_t i = 0; i < n; ++i) {
      if ((i & h) != 0) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b, x[i + h] = a - b;
    }
  }
  for (float& v : x) v *= static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
  return x;
}

TEST(Hadamard, HasTheSameBitsOnEveryTarget) {
  test::for_each_target([] {
    Rng rng(3);
    for (int64_t n = 1; n <= 1024; n *= 2) {
      std::vector<float> x;
      for (int64_t i = 0; i < n; ++i) x.push_back(static_cast<float>(rng.normal()));
      const std::vector<float> want = hadamard(x);
      hadamard_row(x.data(), n);
      EXPECT_EQ(x, want) << n;
    }
  });
}

}  // namespace
}  // namespace dsv4::cpu
