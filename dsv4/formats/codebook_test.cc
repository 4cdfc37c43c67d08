#include "dsv4/formats/codebook.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

// The normal quantile by bisection of erfc, in long double.
long double normal_quantile(long double p) {
  long double low = -10, high = 10;
  for (int i = 0; i < 200; ++i) {
    const long double middle = (low + high) / 2;
    (0.5L * std::erfc(-middle / std::sqrt(2.0L)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

TEST(Codebook, NfIsTheQuantileOfBinMidpoints) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    const Codebook book = nf_codebook(bits);
    const int n = 1 << bits;
    ASSERT_EQ(book.size(), n);
    const auto last = static_cast<float>(normal_quantile((n - 0.5L) / n));
    for (int i = 0; i < n; ++i) {
      const float want = static_cast<float>(normal_quantile((i + 0.5L) / n)) / last;
      EXPECT_EQ(std::bit_cast<uint32_t>(book.value[static_cast<size_t>(i)]),
                std::bit_cast<uint32_t>(want))
          << bits << " bits, value " << i;
    }
  }
}

TEST(Codebook, AllAreSortedAndAntisymmetric) {
  std::vector<Codebook> books{e2m1_codebook()};
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    books.push_back(nf_codebook(bits));
    books.push_back(bnf_codebook(bits));
    EXPECT_EQ(nf_codebook(bits).largest(), 1.f);
    EXPECT_LT(bnf_codebook(bits).largest(), 1.f);
    books.push_back(e4m3_codebook(bits));
  }
  for (const Codebook& book : books) {
    EXPECT_TRUE(book.antisymmetric());
    EXPECT_TRUE(std::is_sorted(book.values().begin(), book.values().end()));
  }
}

// A Lloyd-Max table is a fixed point: each level is the mean of the values that round to it.
TEST(Codebook, BnfIsLloydMaxOfABlockOverItsAbsmax) {
  Rng rng(3);
  constexpr int kBlocks = 60000, kBlock = 32;
  std::vector<float> x;
  for (int b = 0; b < kBlocks; ++b) {
    float block[kBlock], absmax = 0;
    for (float& v : block) {
      v = static_cast<float>(rng.normal());
      absmax = std::max(absmax, std::abs(v));
    }
    for (const float v : block) x.push_back(v / absmax);
  }
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    const Codebook book = bnf_codebook(bits);
    std::vector<double> sum(static_cast<size_t>(book.size())), count(sum);
    for (const float v : x) {
      size_t best = 0;
      for (size_t i = 1; i < sum.size(); ++i)
        if (std::abs(v - book.value[i]) < std::abs(v - book.value[best])) best = i;
      sum[best] += static_cast<double>(v);
      ++count[best];
    }
    for (size_t i = 0; i < sum.size(); ++i)
      EXPECT_NEAR(sum[i] / count[i], static_cast<double>(book.value[i]), 0.004) << bits << ' ' << i;
  }
}

// Four significant bits, and at most 6 binades below the largest: normal e4m3 numbers times 2^-7.
TEST(Codebook, E4m3IsOnTheGridOfE4m3) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const float value : e4m3_codebook(bits).values()) {
      EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(value * 128)), value * 128) << bits << ' ' << value;
      EXPECT_GE(std::abs(value), 0x1p-6f);
    }
    EXPECT_TRUE(is_e4m3_codebook(e4m3_codebook(bits).values()));
    EXPECT_FALSE(is_e4m3_codebook(bnf_codebook(bits).values()));
  }
  EXPECT_FALSE(is_e4m3_codebook({}));
}

// What kernels decode without a table.
TEST(Codebook, E4m3OfFiveBitsAreOddCodes) {
  const Codebook book = e4m3_codebook(5);
  for (int i = 0; i < 16; ++i) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(2 * i + 1)) * 8;
    EXPECT_EQ(book.value[static_cast<size_t>(16 + i)], value) << i;
  }
}

TEST(Codebook, E2m1HoldsEveryFp4ValueOverEight) {
  const Codebook book = e2m1_codebook();
  for (int code = 0; code < 16; ++code) {
    const float value = e2m1_to_f32(static_cast<uint8_t>(code)) / 8;
    int found = 0;
    for (const float v : book.values())
      found += std::bit_cast<uint32_t>(v) == std::bit_cast<uint32_t>(value) ? 1 : 0;
    EXPECT_EQ(found, 1) << code;
  }
}

TEST(Codebook, ChecksUserCodebooks) {
  const std::vector<float> good{-2.f, -0.5f, 0.25f, 8.f};
  EXPECT_EQ(user_codebook(good).bits, 2);
  EXPECT_EQ(user_codebook(good).largest(), 8.f);
  EXPECT_FALSE(user_codebook(good).antisymmetric());
  const auto error = [](std::vector<float> v) { return test::error_of([&] { user_codebook(v); }); };
  EXPECT_EQ(error({1, 2, 3}), "a codebook has 4, 8, 16 or 32 values, not 3");
  EXPECT_EQ(error({}), "a codebook has 4, 8, 16 or 32 values, not 0");
  EXPECT_NE(error(std::vector<float>(64, 1.f)), "");
  EXPECT_EQ(error({1, 2, 1, 3}), "codebook value 2 is 1: want finite values in ascending order");
  EXPECT_NE(error({1, 2, 3, std::numeric_limits<float>::infinity()}), "");
  EXPECT_NE(error({std::numeric_limits<float>::quiet_NaN(), 2, 3, 4}), "");
  EXPECT_EQ(error({0, 0, 0, 0}), "all values of the codebook are zero");
  EXPECT_NE(test::error_of([] { nf_codebook(6); }).find("2 to 5 bits, not 6"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
