#include "dsv4/formats/weight.h"

#include <cmath>
#include <functional>

#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

void randomize(const Buffer& buffer, Rng& rng) {
  for (int64_t i = 0; i < buffer.view().bytes(); ++i) {
    buffer.view().data[i] = static_cast<std::byte>(rng.bits());
  }
}

TEST(Weight, PlainFormats) {
  const Buffer f32(DType::kF32, {2, 3}), bf16(DType::kBF16, {2, 3}), f16(DType::kF16, {2, 3});
  f32.as<float>()[5] = -7.25f;
  bf16.as<uint16_t>()[5] = 0xc0e8;  // -7.25
  f16.as<uint16_t>()[5] = 0xc740;   // -7.25
  for (const auto& [format, buffer] : {std::pair{WeightFormat::kF32, &f32},
                                       {WeightFormat::kBF16, &bf16},
                                       {WeightFormat::kF16, &f16}}) {
    const WeightView w{.format = format, .n = 2, .k = 3, .data = *buffer};
    check(name(format), w);
    EXPECT_EQ(weight_value(w, 1, 2), -7.25) << name(format);
    EXPECT_EQ(weight_value(w, 1, 1), 0) << name(format);
    EXPECT_FALSE(w.quantized_activations());
  }
}

// 130 x 257: the blocks are ragged along both axes.
TEST(Weight, Fp8BlockWithRaggedEdges) {
  constexpr int64_t kRows = 130, kColumns = 257;
  const Buffer codes(DType::kE4M3, {kRows, kColumns}), bytes(DType::kE8M0, {2, 3});
  const Buffer floats(DType::kF32, {2, 3});
  Rng rng(1);
  randomize(codes, rng);
  for (int64_t i = 0; i < 6; ++i) {
    bytes.as<uint8_t>()[i] = static_cast<uint8_t>(120 + i);
    floats.as<float>()[i] =
        0.3f + static_cast<float>(i);  // the base models' scales need not be powers
  }
  WeightView w{.format = WeightFormat::kFp8Block, .n = kRows, .k = kColumns, .data = codes};
  for (const int64_t n : {0, 127, 128, 129}) {
    for (const int64_t k : {0, 127, 128, 255, 256}) {
      const uint8_t code = codes.as<uint8_t>()[n * kColumns + k];
      if ((code & 0x7f) == 0x7f) continue;
      const auto value = static_cast<double>(e4m3_to_f32(code));
      const int64_t block = (n >= 128 ? 3 : 0) + (k >= 256 ? 2 : k >= 128 ? 1 : 0);
      w.scale = bytes;
      check("w", w);
      EXPECT_EQ(weight_value(w, n, k), std::ldexp(value, static_cast<int>(block) + 120 - 127));
      w.scale = floats;
      check("w", w);
      EXPECT_EQ(weight_value(w, n, k), value * static_cast<double>(floats.as<float>()[block]));
    }
  }
  EXPECT_EQ(w.bytes(), kRows * kColumns + 6 * 4);
  EXPECT_TRUE(w.quantized_activations());
}

TEST(Weight, Mxfp4NibbleOrderAndScales) {
  const Buffer pairs(DType::kI8, {2, 32}), scales(DType::kE8M0, {2, 2});
  std::fill_n(scales.as<uint8_t>(), 4, uint8_t{127});
  pairs.as<uint8_t>()[0] = 0x5a;        // (0, 0) = -1, (0, 1) = 3
  pairs.as<uint8_t>()[16] = 0x07;       // (0, 32) = 6
  pairs.as<uint8_t>()[32 + 31] = 0x90;  // (1, 63) = -0.5
  scales.as<uint8_t>()[1] = 0x78;       // row 0, k 32..63: 2^-7
  scales.as<uint8_t>()[3] = 130;        // row 1, k 32..63: 8
  const WeightView w{
      .format = WeightFormat::kMxfp4, .n = 2, .k = 64, .data = pairs, .scale = scales};
  check("w", w);
  EXPECT_EQ(weight_value(w, 0, 0), -1);
  EXPECT_EQ(weight_value(w, 0, 1), 3);
  EXPECT_EQ(weight_value(w, 0, 32), 6 * 0x1p-7);
  EXPECT_EQ(weight_value(w, 1, 63), -4);
  EXPECT_EQ(weight_value(w, 1, 62), 0);
}

TEST(Weight, Nvfp4HasTwoScales) {
  const Buffer pairs(DType::kU8, {1, 16}), scales(DType::kE4M3, {1, 2});
  pairs.as<uint8_t>()[7] = 0x31;   // k 14 = 0.5, k 15 = 1.5
  pairs.as<uint8_t>()[8] = 0xf0;   // k 17 = -6
  scales.as<uint8_t>()[0] = 0x38;  // 1
  scales.as<uint8_t>()[1] = 0x7e;  // 448
  const WeightView w{.format = WeightFormat::kNvfp4,
                     .n = 1,
                     .k = 32,
                     .data = pairs,
                     .scale = scales,
                     .scale2 = 0.25f};
  check("w", w);
  EXPECT_EQ(weight_value(w, 0, 14), 0.125);
  EXPECT_EQ(weight_value(w, 0, 15), 0.375);
  EXPECT_EQ(weight_value(w, 0, 17), -672);
}

// Values computed by hand: codes i mod 2^K in row 0, the largest code in row 1; scales 1 and 0.75,
// s2 = 1/4.
TEST(Weight, KbitPlanesScalesAndCodebook) {
  for (int bits = 2; bits <= 5; ++bits) {
    const int64_t size = int64_t{1} << bits;
    const Buffer planes(DType::kI32, {2, 2 * bits}), scales(DType::kU8, {2, 2});
    const Buffer codebook(DType::kF32, {size});
    for (int64_t c = 0; c < size; ++c) codebook.as<float>()[c] = static_cast<float>(c * c) - 3;
    constexpr uint32_t kCounting[] = {0xaaaaaaaa, 0xcccccccc, 0xf0f0f0f0, 0xff00ff00, 0xffff0000};
    for (int j = 0; j < bits; ++j) {
      planes.as<uint32_t>()[j] = planes.as<uint32_t>()[bits + j] = kCounting[j];
      planes.as<uint32_t>()[2 * bits + j] = planes.as<uint32_t>()[3 * bits + j] = ~uint32_t{0};
    }
    const uint8_t bytes[] = {0xb0, 0xa8, 0xb0, 0x00};
    std::copy_n(bytes, 4, scales.as<uint8_t>());
    WeightView w{.format = WeightFormat::kKbit,
                 .n = 2,
                 .k = 64,
                 .data = planes,
                 .scale = scales,
                 .scale2 = 0.25f,
                 .bits = bits,
                 .codebook = codebook};
    check("w", w);
    EXPECT_TRUE(w.quantized_activations());
    for (int64_t k = 0; k < 64; ++k) {
      const int64_t c = k % size;
      EXPECT_EQ(weight_value(w, 0, k), static_cast<double>(c * c - 3) * (k < 32 ? 1 : 0.75) * 0.25);
    }
    const auto largest = static_cast<double>((size - 1) * (size - 1) - 3);
    EXPECT_EQ(weight_value(w, 1, 31), largest * 0.25);
    EXPECT_EQ(weight_value(w, 1, 32), 0);
    EXPECT_EQ(weight_value(w.rows(1, 2), 0, 5), largest * 0.25);
    EXPECT_EQ(w.bytes(), 2 * 2 * bits * 4 + 4);
  }
}

TEST(Weight, KbitReportsErrors) {
  const Buffer planes(DType::kI32, {3, 6}), scales(DType::kU8, {3, 2}), codebook(DType::kF32, {8});
  const WeightView good{.format = WeightFormat::kKbit,
                        .n = 3,
                        .k = 64,
                        .data = planes,
                        .scale = scales,
                        .bits = 3,
                        .codebook = codebook};
  check("w", good);
  const auto error = [&](const std::function<void(WeightView&)>& spoil) {
    WeightView w = good;
    spoil(w);
    return test::error_of([&] { check("w", w); });
  };
  const Buffer floats(DType::kF32, {3, 2});
  EXPECT_NE(error([](WeightView& w) { w.bits = 6; }).find("w: want 2 to 5 bits, got 6"),
            std::string::npos);
  EXPECT_NE(error([](WeightView& w) { w.k = 48; }).find("k=48 is not a multiple of 32"),
            std::string::npos);
  EXPECT_NE(error([](WeightView& w) { w.bits = 2; }).find("want [n=3, 4] I32, got [3, 6] I32"),
            std::string::npos);
  EXPECT_NE(error([](WeightView& w) {
              w.codebook = w.codebook.slice(0, 0, 4);
            }).find("want [8] F32, got [4] F32"),
            std::string::npos);
  EXPECT_NE(error([&](WeightView& w) { w.scale = floats; }).find("want [n=3, 2] U8, got [3, 2]"),
            std::string::npos);
}

TEST(Weight, RowsAreAViewOfTheSameValues) {
  const Buffer codes(DType::kE4M3, {300, 130}), scale8(DType::kE8M0, {3, 2});
  const Buffer pairs(DType::kU8, {300, 32}), scale4(DType::kE8M0, {300, 2});
  Rng rng(2);
  for (const Buffer* buffer : {&codes, &scale8, &pairs, &scale4}) randomize(*buffer, rng);
  const WeightView fp8{
      .format = WeightFormat::kFp8Block, .n = 300, .k = 130, .data = codes, .scale = scale8};
  const WeightView fp4{
      .format = WeightFormat::kMxfp4, .n = 300, .k = 64, .data = pairs, .scale = scale4};
  using Range = std::pair<int64_t, int64_t>;
  for (const auto& [begin, end] :
       {Range{0, 300}, {128, 300}, {256, 300}, {256, 260}, {128, 128}, {0, 0}}) {
    const WeightView part8 = fp8.rows(begin, end), part4 = fp4.rows(begin, end);
    check("fp8", part8);
    check("fp4", part4);
    for (int64_t n = begin; n < end; ++n) {
      const auto same = [](double a, double b) {
        return a == b || (std::isnan(a) && std::isnan(b));
      };
      EXPECT_TRUE(same(weight_value(part8, n - begin, 129), weight_value(fp8, n, 129))) << n;
      EXPECT_TRUE(same(weight_value(part4, n - begin, 33), weight_value(fp4, n, 33))) << n;
    }
  }
  check("within one block", fp8.rows(130, 256));
  check("empty inside a block", fp8.rows(130, 130));
  check("any row of a 4-bit weight", fp4.rows(7, 9));
  EXPECT_NE(test::error_of([&] { fp8.rows(100, 129); }).find("rows [100, 129) cut 128-row scale"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { fp8.rows(0, 301); }).find("slice [0, 301) of axis 0"),
            std::string::npos);
}

TEST(Weight, ReportsErrors) {
  const Buffer codes(DType::kE4M3, {130, 256}), scale(DType::kE8M0, {1, 2});
  const auto error = [](const WeightView& w) { return test::error_of([&] { check("wq", w); }); };
  EXPECT_EQ(
      error({.format = WeightFormat::kFp8Block, .n = 130, .k = 256, .data = codes, .scale = scale}),
      "wq: want [2, 2] F8_E8M0|F32, got [1, 2] F8_E8M0");
  EXPECT_EQ(error({.format = WeightFormat::kBF16, .n = 130, .k = 256, .data = codes}),
            "wq: want [n=130, k=256] BF16, got [130, 256] F8_E4M3");
  EXPECT_NE(error({.format = WeightFormat::kMxfp4, .n = 130, .k = 40})
                .find("k=40 is not a multiple of 32"),
            std::string::npos);
  EXPECT_NE(error({.format = WeightFormat::kF32, .n = 1, .k = 1}), "");
}

}  // namespace
}  // namespace dsv4
