#include "dsv4/quality/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using Row = std::vector<float>;

Row random_row(Rng& rng, int64_t n, double spread) {
  Row row(static_cast<size_t>(n));
  for (float& x : row) x = static_cast<float>(spread * rng.normal());
  return row;
}

// The formulas in long double, without subtracting the maximum.
long double oracle_lse(const Row& row) {
  long double sum = 0;
  for (const float x : row) sum += std::exp(static_cast<long double>(x));
  return std::log(sum);
}

long double oracle_kl(const Row& p, const Row& q) {
  const long double lp = oracle_lse(p), lq = oracle_lse(q);
  long double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += std::exp(p[i] - lp) * ((p[i] - lp) - (q[i] - lq));
  return sum;
}

TEST(Distribution, AgreesWithOracle) {
  Rng rng(1);
  for (const int64_t n : {1, 2, 3, 97, 1536, 20000}) {
    for (const double spread : {0.1, 3.0, 30.0}) {
      const Row p = random_row(rng, n, spread), q = random_row(rng, n, spread);
      // Both sum n terms of equal sign in at least 53 bits: n ulps at worst, sqrt(n) typically.
      const double tolerance = 1e-15 * (10 + std::sqrt(static_cast<double>(n)));
      const auto lse = static_cast<double>(oracle_lse(p));
      EXPECT_NEAR(log_sum_exp(p), lse, tolerance * (1 + std::abs(lse)));
      const auto kl = static_cast<double>(oracle_kl(p, q));
      EXPECT_NEAR(kl_divergence(p, q), kl, tolerance * (10 + 100 * spread));
    }
  }
}

TEST(Distribution, LargeLogitsDoNotOverflow) {
  Rng rng(2);
  Row p = random_row(rng, 100, 1.0), shifted = p;
  for (float& x : p) x = std::round(x * 64) / 64;
  for (size_t i = 0; i < p.size(); ++i) shifted[i] = p[i] + 65536.f;  // exact in f32
  EXPECT_NEAR(log_sum_exp(shifted) - 65536, log_sum_exp(p), 1e-10);
  EXPECT_NEAR(kl_divergence(p, shifted), 0, 1e-10);
  const Row far = {0.f, -3e38f, 3e38f};
  EXPECT_EQ(log_sum_exp(far), static_cast<double>(3e38f));
}

TEST(Kl, EqualRowsGiveExactlyZero) {
  Rng rng(3);
  for (int round = 0; round < 100; ++round) {
    const Row p = random_row(rng, 1 + rng.below(3000), 5.0);
    EXPECT_EQ(kl_divergence(p, p), 0);
  }
}

TEST(Kl, IsNeverNegative) {
  Rng rng(4);
  for (int round = 0; round < 300; ++round) {
    const Row p = random_row(rng, 100, 2.0);
    Row q = p;
    const auto at = static_cast<size_t>(rng.below(100));
    q[at] = std::nextafter(q[at], 10.f);
    EXPECT_GE(kl_divergence(p, q), 0);
  }
}

TEST(Kl, ByHand) {
  const Row p = {std::log(2.f), std::log(2.f)}, q = {0.f, std::log(3.f)};
  // f32 logarithms have a relative error of 2^-25; this is KL of (1/2, 1/2) from (1/4, 3/4).
  EXPECT_NEAR(kl_divergence(p, q), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3), 1e-7);
  EXPECT_NEAR(kl_divergence(q, p), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
}

TEST(BestToken, TiesGoToTheLowestId) {
  EXPECT_EQ(best_token(Row{1.f, 3.f, 3.f, 2.f}), 1);
  EXPECT_EQ(best_token(Row{-2.f}), 0);
}

class Likelihood : public testing::Test {
 protected:
  std::string error(float value) {
    const Buffer logits(DType::kF32, {3, 5});
    logits.as<float>()[2 * 5 + 4] = value;
    return test::error_of(ErrorCode::kBadInput,
                          [&] { negative_log_likelihoods(logits, piece, "k3"); });
  }
  const std::vector<int32_t> ids = {0, 1, 2}, targets = {1, 2, 4};
  const Piece piece{.ids = ids, .targets = targets, .window = 6, .position = 40};
};

TEST_F(Likelihood, UniformLogitsGiveLogV) {
  const Buffer logits(DType::kF32, {3, 5});
  for (const double nll : negative_log_likelihoods(logits, piece, "m"))
    EXPECT_DOUBLE_EQ(nll, std::log(5.0));
}

TEST_F(Likelihood, NamesThePositionOfANonFiniteLogit) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(error(std::nanf("")), "k3: the logit of token 4 at position 42 of window 6 is nan");
  EXPECT_EQ(error(infinity), "k3: the logit of token 4 at position 42 of window 6 is inf");
  EXPECT_EQ(error(-infinity), "k3: the logit of token 4 at position 42 of window 6 is -inf");
}

TEST_F(Likelihood, ChecksShapesAndTargets) {
  const Buffer few(DType::kF32, {2, 5}), narrow(DType::kF32, {3, 4});
  const auto error_of = [&](const Buffer& logits) {
    return test::error_of(ErrorCode::kInvalidArgument,
                          [&] { negative_log_likelihoods(logits, piece, "m"); });
  };
  EXPECT_TRUE(test::says(error_of(few), "want [3, 5]"));
  EXPECT_TRUE(test::says(error_of(narrow), "target 4 is outside the 4 logits"));
}

}  // namespace
}  // namespace dsv4
