#include "dsv4/cpu/vec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "tests/harness/targets.h"

namespace dsv4::cpu {
namespace {

// Every length up to several vectors and every misalignment, on every instruction set.
void for_shapes(const std::function<void(int64_t n, int64_t shift)>& check) {
  test::for_each_target([&] {
    for (int64_t n = 0; n <= 70; ++n) {
      for (int64_t shift = 0; shift < 4; ++shift) check(n, shift);
    }
    check(4096, 1);
  });
}

// Random floats at an odd address, followed by a sentinel.
struct Floats {
  static constexpr float kSentinel = 12345.f;
  std::vector<float> memory;
  int64_t shift, n;

  Floats(int64_t size, int64_t offset, uint64_t seed)
      : memory(static_cast<size_t>(size + offset + 1)), shift(offset), n(size) {
    Rng rng(seed);
    for (float& v : memory) v = static_cast<float>(rng.normal());
    memory.back() = kSentinel;
  }
  float* data() { return memory.data() + shift; }
  float operator[](int64_t i) const { return memory[static_cast<size_t>(i + shift)]; }
  bool intact() const { return memory.back() == kSentinel; }
};

TEST(Vec, DotAndSumSquares) {
  for_shapes([](int64_t n, int64_t shift) {
    Floats a(n, shift, 1), b(n, 3 - shift, 2);
    double want = 0, magnitude = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
      want += x * y, magnitude += std::abs(x * y), squares += x * x;
    }
    // n products and n additions, each within half an ulp of its result.
    const double allowed = static_cast<double>(n + 1) * 0x1p-24;
    EXPECT_NEAR(static_cast<double>(dot(a.data(), b.data(), n)), want, allowed * magnitude) << n;
    EXPECT_NEAR(static_cast<double>(sum_squares(a.data(), n)), squares, allowed * squares) << n;
  });
}

TEST(Vec, Axpy) {
  for_shapes([](int64_t n, int64_t shift) {
    Floats x(n, shift, 3), y(n, 3 - shift, 4);
    const Floats before = y;
    axpy(-1.7f, x.data(), y.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      const double product = static_cast<double>(-1.7f) * static_cast<double>(x[i]);
      const double want = product + static_cast<double>(before[i]);
      // The product is rounded unless the operation is fused; then the sum is rounded.
      EXPECT_NEAR(static_cast<double>(y[i]), want, 0x1p-24 * (std::abs(product) + std::abs(want)));
    }
    EXPECT_TRUE(y.intact());
  });
}

TEST(Vec, ScaleAndMultiplyMatchTheFormulaBitForBit) {
  for_shapes([](int64_t n, int64_t shift) {
    Floats x(n, shift, 5), w(n, 3 - shift, 6), scaled(n, shift, 7), product(n, 1, 8);
    scale(0.3f, x.data(), scaled.data(), n);
    multiply(0.3f, x.data(), w.data(), product.data(), n);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(scaled[i], 0.3f * x[i]);
      EXPECT_EQ(product[i], w[i] * (0.3f * x[i]));
    }
    EXPECT_TRUE(scaled.intact() && product.intact());
    scale(0.3f, x.data(), x.data(), n);  // in place
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(x[i], scaled[i]);
  });
}

TEST(Vec, WidenEveryBf16) {
  test::for_each_target([] {
    std::vector<uint16_t> codes(65536 + 5);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(codes.size());
    widen_bf16(codes.data(), wide.data(), static_cast<int64_t>(codes.size()));
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), uint32_t{codes[i]} << 16) << i;
    }
  });
}

// Compares bit for bit with f32_to_bf16 and f32_to_f16: around every bf16 value and midpoint,
// around f16's midpoints, NaN with any payload, random patterns.
TEST(Vec, NarrowTo16Bits) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(std::bit_cast<float>(high << 16 | low));
    }
    for (const float factor : {0x1.ffep-1f, 1.f, 0x1.002p0f}) {
      values.push_back(f16_to_f32(static_cast<uint16_t>(high)) * factor);
    }
  }
  Rng rng(9);
  for (int i = 0; i < 100'003; ++i) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng.bits())));
  }
  test::for_each_target([&] {
    std::vector<uint16_t> codes(values.size());
    narrow_bf16(values.data(), codes.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes[i], f32_to_bf16(values[i])) << std::bit_cast<uint32_t>(values[i]);
    }
    narrow_f16(values.data(), codes.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(codes[i], f32_to_f16(values[i])) << std::bit_cast<uint32_t>(values[i]);
    }
  });
}

TEST(Vec, WidenAndNarrowWriteOnlyTheirRange) {
  for_shapes([](int64_t n, int64_t shift) {
    Floats x(n, shift, 10), back(n, 3 - shift, 11);
    std::vector<uint16_t> codes(static_cast<size_t>(n + shift) + 1, 0x1234);
    narrow_bf16(x.data(), codes.data() + shift, n);
    widen_bf16(codes.data() + shift, back.data(), n);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(back[i], round_to_bf16(x[i]));
    EXPECT_EQ(codes.back(), 0x1234);
    EXPECT_TRUE(back.intact());
  });
}

TEST(Vec, DecodeEveryE4m3) {
  test::for_each_target([] {
    for (int64_t first = 0; first < 256; ++first) {  // every code in every lane and in the tail
      std::vector<uint8_t> codes;
      for (int64_t i = 0; i < 70; ++i) codes.push_back(static_cast<uint8_t>(first + i));
      for (const float factor : {1.f, 0x1p-120f, 0.3f, -2.f}) {
        std::vector<float> values(70);
        decode_e4m3(codes.data(), factor, values.data(), 70);
        for (size_t i = 0; i < 70; ++i) {
          const float want = factor * e4m3_to_f32(codes[i]);
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(values[i])) << int{codes[i]};
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(want))
                << int{codes[i]};
          }
        }
      }
    }
  });
  for_shapes([](int64_t n, int64_t shift) {
    const std::vector<uint8_t> codes(static_cast<size_t>(n + shift), 0x38);
    Floats y(n, 3 - shift, 12);
    decode_e4m3(codes.data() + shift, 2.f, y.data(), n);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(y[i], 2.f);
    EXPECT_TRUE(y.intact());
  });
}

}  // namespace
}  // namespace dsv4::cpu
