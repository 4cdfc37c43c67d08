#include "dsv4/convert/fp8_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/weight.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

struct Quantized {
  Buffer codes, scales;
  WeightView weight;
};

Quantized quantize(const ConstTensorView& x) {
  const int64_t n = x.dim(0), k = x.dim(1);
  Quantized q{
      Buffer(DType::kE4M3, {n, k}), Buffer(DType::kE8M0, {ceil_div(n, 128), ceil_div(k, 128)}), {}};
  quantize_fp8_blocks({.x = x, .codes = q.codes, .scales = q.scales});
  q.weight = {
      .format = WeightFormat::kFp8Block, .n = n, .k = k, .data = q.codes, .scale = q.scales};
  return q;
}

Buffer random_matrix(int64_t n, int64_t k, uint64_t seed) {
  Buffer x(DType::kF32, {n, k});
  Rng rng(seed);
  for (int64_t i = 0; i < n * k; ++i)
    x.as<float>()[i] = static_cast<float>(rng.normal() * std::exp2(rng.uniform(-20, 20)));
  return x;
}

TEST(Fp8Blocks, ErrorIsAtMostHalfAStep) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {130, 257}, {256, 128}, {3, 500}}) {
    const Buffer x = random_matrix(n, k, static_cast<uint64_t>(n * 1000 + k));
    const Quantized q = quantize(x);
    for (int64_t row = 0; row < n; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        const double value = static_cast<double>(x.as<float>()[row * k + i]);
        const double scale = std::exp2(q.scales.view().row<uint8_t>(row / 128)[i / 128] - 127.0);
        // e4m3 has 3 bits after the leading one and steps of 2^-9 below 2^-6.
        const double bound = std::max(std::abs(value) * 0x1p-4, scale * 0x1p-10);
        ASSERT_NEAR(weight_value(q.weight, row, i), value, bound) << n << "x" << k << " at " << row;
        ASSERT_LE(std::abs(value), 448 * scale);
      }
    }
  }
}

TEST(Fp8Blocks, ScaleIsTheSmallestThatFits) {
  const Buffer x = random_matrix(256, 256, 5);
  const Quantized q = quantize(x);
  for (int64_t block = 0; block < 4; ++block) {
    float largest = 0;
    for (int64_t i = 0; i < 128 * 128; ++i)
      largest = std::max(
          largest,
          std::abs(x.as<float>()[(block / 2 * 128 + i / 128) * 256 + block % 2 * 128 + i % 128]));
    const double scale = std::exp2(q.scales.as<uint8_t>()[block] - 127.0);
    EXPECT_LE(static_cast<double>(largest), 448 * scale);
    EXPECT_GT(static_cast<double>(largest), 224 * scale);
  }
}

TEST(Fp8Blocks, RepresentableValuesAreExact) {
  Buffer x(DType::kF32, {1, 4});
  const float values[] = {448.f * 0x1p-5f, -0x1p-5f, 0.f,
                          0x1p-14f};  // the last is 2^-9 times the scale 2^-5
  std::copy(std::begin(values), std::end(values), x.as<float>());
  const Quantized q = quantize(x);
  EXPECT_EQ(*q.scales.as<uint8_t>(), 127 - 5);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(weight_value(q.weight, 0, i), static_cast<double>(values[i]));
}

TEST(Fp8Blocks, ZerosTinyAndHuge) {
  Buffer x(DType::kF32, {1, 3});
  EXPECT_EQ(*quantize(x).scales.as<uint8_t>(), 127);
  x.as<float>()[1] = 0x1p-149f;
  EXPECT_EQ(*quantize(x).scales.as<uint8_t>(), 1);
  x.as<float>()[1] = std::numeric_limits<float>::max();
  const Quantized q = quantize(x);
  EXPECT_EQ(*q.scales.as<uint8_t>(), 127 + 120);  // 2^128 / 448 = 2^119.2
  EXPECT_NEAR(weight_value(q.weight, 0, 1) / 0x1p128, 1, 0x1p-4);
  EXPECT_TRUE(quantize(Buffer(DType::kF32, {0, 128})).codes.view().numel() == 0);
}

TEST(Fp8Blocks, ReportsNonFiniteValues) {
  Buffer x(DType::kF32, {3, 200});
  x.as<float>()[2 * 200 + 150] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(test::error_of(ErrorCode::kBadInput, [&] { quantize(x); }), "row 2, column 150 is nan");
  const Buffer out(DType::kBF16, {3, 200});
  EXPECT_EQ(test::error_of(ErrorCode::kBadInput, [&] { round_rows_to_bf16(x, out); }),
            "row 2, column 150 is nan");
  x.as<float>()[2 * 200 + 150] = std::numeric_limits<float>::max();
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kBadInput, [&] { round_rows_to_bf16(x, out); }),
                         "exceeds the range of bf16"));
}

TEST(Fp8Blocks, BF16RoundsToNearest) {
  const Buffer x = random_matrix(5, 77, 9);
  const Buffer out(DType::kBF16, {5, 77});
  round_rows_to_bf16(x, out);
  for (int64_t i = 0; i < x.view().numel(); ++i)
    ASSERT_EQ(out.as<uint16_t>()[i], f32_to_bf16(x.as<float>()[i]));
}

}  // namespace
}  // namespace dsv4
