#include "dsv4/base/rng.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace dsv4 {
namespace {

// Values from an independent program: the tokens sampled with a seed must never change.
static_assert(random_bits(0, 0) == 0xa706dd2f4d197e6f);
static_assert(random_bits(0, 1) == 0xb382a305f4414f5e);
static_assert(random_bits(1, 0) == 0x5e41ab087439611e);
static_assert(random_bits(12345, 678) == 0xd8c8b94680135070);
static_assert(random_bits(~0ull, ~0ull) == 0x445018e305810b78, "the counter may wrap");
static_assert(random_uniform(12345, 678) == 0.8468128010864124);

TEST(Rng, DrawsTheStreamOfItsSeed) {
  Rng rng(5);
  for (uint64_t counter = 0; counter < 10; ++counter)
    EXPECT_EQ(rng.bits(), random_bits(5, counter));
}

TEST(Rng, EveryBitIsSetHalfOfTheTime) {
  constexpr int kDraws = 100'000;
  std::array<int, 64> ones{};
  Rng rng(1);
  for (int i = 0; i < kDraws; ++i) {
    const uint64_t bits = rng.bits();
    for (size_t b = 0; b < 64; ++b) ones[b] += static_cast<int>(bits >> b & 1);
  }
  // Five standard deviations of a fair coin, sqrt(n) / 2 each.
  for (size_t b = 0; b < 64; ++b) EXPECT_NEAR(ones[b], kDraws / 2, 2.5 * std::sqrt(kDraws)) << b;
}

TEST(Rng, NeighboringSeedsAndCountersAreUnrelated) {
  for (uint64_t i = 0; i < 100; ++i) {
    int seed_flips = 0, counter_flips = 0;
    for (uint64_t j = 0; j < 100; ++j) {
      seed_flips += __builtin_popcountll(random_bits(i, j) ^ random_bits(i + 1, j));
      counter_flips += __builtin_popcountll(random_bits(i, j) ^ random_bits(i, j + 1));
    }
    // 6400 bits, half of them flip; standard deviation 40.
    EXPECT_NEAR(seed_flips, 3200, 240) << i;
    EXPECT_NEAR(counter_flips, 3200, 240) << i;
  }
}

TEST(Rng, UniformAndNormalHaveExpectedMoments) {
  constexpr int kDraws = 200'000;
  double sum = 0, square = 0, normal = 0, normal_square = 0;
  Rng rng(2);
  for (int i = 0; i < kDraws; ++i) {
    const double u = rng.uniform();
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u, square += u * u;
    const double v = rng.normal();
    ASSERT_TRUE(std::isfinite(v));
    normal += v, normal_square += v * v;
  }
  // Five standard errors each: sqrt(1/12), sqrt(4/45), 1 and sqrt(2) over sqrt(n).
  EXPECT_NEAR(sum / kDraws, 0.5, 0.0033);
  EXPECT_NEAR(square / kDraws, 1.0 / 3, 0.0034);
  EXPECT_NEAR(normal / kDraws, 0, 0.0112);
  EXPECT_NEAR(normal_square / kDraws, 1, 0.0159);
}

TEST(Rng, RangesIncludeTheirEnds) {
  Rng rng(3);
  std::array<int, 5> seen{};
  for (int i = 0; i < 1000; ++i) {
    ++seen.at(static_cast<size_t>(rng.below(5)));
    const double v = rng.uniform(-2, 3);
    ASSERT_TRUE(v >= -2 && v < 3);
  }
  for (const int count : seen) EXPECT_GT(count, 100);
}

}  // namespace
}  // namespace dsv4
