// Perplexity and divergence of sources with known logits, and of a real model in chunks.

#include "dsv4/quality/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/quality/distribution.h"
#include "dsv4/quality/logits_source.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;
using Logit = std::function<double(int64_t window, int64_t position, int64_t token)>;

// Logits computed by a formula. Records the largest number of rows requested at once.
class Formula : public LogitsSource {
 public:
  Formula(int64_t vocab, Logit logit) : vocab_(vocab), logit_(std::move(logit)) {}
  int64_t vocab() const override { return vocab_; }
  ConstTensorView next(const Piece& piece) override {
    const auto rows = static_cast<int64_t>(piece.targets.size());
    most_rows = std::max(most_rows, rows);
    if (rows == 0) return {};
    logits_ = Buffer(DType::kF32, {rows, vocab_});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t v = 0; v < vocab_; ++v)
        logits_.view().row<float>(i)[v] =
            static_cast<float>(logit_(piece.window, piece.position + i, v));
    }
    return logits_;
  }
  int64_t most_rows = 0;

 private:
  int64_t vocab_;
  Logit logit_;
  Buffer logits_;
};

Logit random_logit(uint64_t seed, double spread) {
  return [=](int64_t window, int64_t position, int64_t token) {
    const auto counter = static_cast<uint64_t>((window * 10000 + position) * 10000 + token);
    return spread * (random_uniform(seed, counter) - 0.5);
  };
}

Ids random_ids(int64_t n, int64_t vocab) {
  Rng rng(static_cast<uint64_t>(n));
  Ids ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(vocab)));
  return ids;
}

Perplexity perplexity(LogitsSource& source, const Ids& ids, const WindowOptions& options,
                      int64_t chunk) {
  PerplexityMeter meter("model");
  for_each_piece(split_windows(ids, options), options.bos, chunk,
                 [&](const Piece& piece) { meter.add(source.next(piece), piece); });
  return meter.result();
}

Divergence divergence(LogitsSource& reference, LogitsSource& model, const Ids& ids,
                      const WindowOptions& options, int64_t chunk) {
  DivergenceMeter meter("reference", "model");
  for_each_piece(split_windows(ids, options), options.bos, chunk, [&](const Piece& piece) {
    const ConstTensorView p = reference.next(piece);
    meter.add(p, model.next(piece), piece);
  });
  return meter.result();
}

TEST(Perplexity, UniformLogitsGiveV) {
  Formula uniform(1000, [](int64_t, int64_t position, int64_t) { return 3.0 * position; });
  const Perplexity result = perplexity(uniform, random_ids(300, 1000), {.context = 50}, 17);
  EXPECT_EQ(result.tokens, 299);
  EXPECT_NEAR(result.value, 1000, 1e-9);
  EXPECT_NEAR(result.error, 0, 1e-9);
}

// Token 0 has probability 3/4 and the text is 0 0 0 1: nll = -(3 log 3/4 + log 1/4) / 4.
TEST(Perplexity, BiasedCoin) {
  Formula coin(2,
               [](int64_t, int64_t, int64_t token) { return token == 0 ? 0.0 : -std::log(3.0); });
  const Perplexity result = perplexity(coin, {0, 0, 0, 1}, {.context = 8, .bos = 5}, 8);
  EXPECT_EQ(result.tokens, 4);
  const double a = -std::log(0.75), b = -std::log(0.25), mean = (3 * a + b) / 4;
  EXPECT_NEAR(result.nll, mean, 1e-7);  // the logit is rounded to f32
  EXPECT_NEAR(result.value, std::exp(mean), 1e-7);
  const double variance = (3 * (a - mean) * (a - mean) + (b - mean) * (b - mean)) / 3;
  EXPECT_NEAR(result.error, std::exp(mean) * std::sqrt(variance / 4), 1e-7);
}

TEST(Perplexity, HoldsAtMostOneChunk) {
  for (const int64_t chunk : {1, 7, 64}) {
    Formula source(11, random_logit(1, 1));
    perplexity(source, random_ids(5000, 11), {.context = 1000, .stride = 300, .bos = 20}, chunk);
    EXPECT_EQ(source.most_rows, chunk);
  }
}

// Against plain sums in long double over all tokens.
TEST(Divergence, AgreesWithOracle) {
  constexpr int64_t kVocab = 37;
  const Ids ids = random_ids(203, kVocab);
  const WindowOptions options{.context = 40, .stride = 25};
  Formula p(kVocab, random_logit(1, 6)), q(kVocab, random_logit(2, 6));
  const Divergence got = divergence(p, q, ids, options, 16);

  std::vector<long double> kl;
  std::vector<double> differences;
  long double nll_p = 0, nll_q = 0;
  int64_t same = 0;
  Formula p2(kVocab, random_logit(1, 6)), q2(kVocab, random_logit(2, 6));
  for_each_piece(split_windows(ids, options), -1, 1, [&](const Piece& piece) {
    const ConstTensorView a = p2.next(piece), b = q2.next(piece);
    if (piece.targets.empty()) return;
    const float *x = a.as<float>(), *y = b.as<float>();
    long double sum_x = 0, sum_y = 0, sum = 0;
    for (int64_t v = 0; v < kVocab; ++v) sum_x += std::exp(static_cast<long double>(x[v]));
    for (int64_t v = 0; v < kVocab; ++v) sum_y += std::exp(static_cast<long double>(y[v]));
    for (int64_t v = 0; v < kVocab; ++v)
      sum += std::exp(static_cast<long double>(x[v])) / sum_x *
             ((x[v] - std::log(sum_x)) - (y[v] - std::log(sum_y)));
    kl.push_back(sum);
    nll_p += std::log(sum_x) - x[piece.targets[0]];
    nll_q += std::log(sum_y) - y[piece.targets[0]];
    same += std::max_element(x, x + kVocab) - x == std::max_element(y, y + kVocab) - y ? 1 : 0;
  });
  const auto n = static_cast<long double>(kl.size());
  ASSERT_EQ(got.tokens, 202);
  ASSERT_EQ(kl.size(), 202u);
  long double total = 0;
  for (const long double value : kl) total += value;
  std::sort(kl.begin(), kl.end());
  // 37 terms and 202 sums in fp64 against long double.
  EXPECT_NEAR(got.mean, static_cast<double>(total / n), 1e-13);
  EXPECT_NEAR(got.median, static_cast<double>((kl[100] + kl[101]) / 2), 1e-13);
  EXPECT_NEAR(got.q99, static_cast<double>(kl[198] + 0.99L * (kl[199] - kl[198])), 1e-13);
  EXPECT_NEAR(got.max, static_cast<double>(kl.back()), 1e-13);
  EXPECT_EQ(got.top1, static_cast<double>(same) / 202);
  EXPECT_NEAR(got.reference.nll, static_cast<double>(nll_p / n), 1e-13);
  EXPECT_NEAR(got.model.nll, static_cast<double>(nll_q / n), 1e-13);
  EXPECT_NEAR(got.ratio, static_cast<double>(std::exp((nll_q - nll_p) / n)), 1e-12);
  EXPECT_GT(got.ratio_error, 0);
}

TEST(Divergence, EqualModelsGiveExactlyZero) {
  Formula a(100, random_logit(1, 9)), b(100, random_logit(1, 9));
  const Divergence result = divergence(a, b, random_ids(500, 100), {.context = 64}, 20);
  EXPECT_EQ(result.mean, 0);
  EXPECT_EQ(result.max, 0);
  EXPECT_EQ(result.top1, 1);
  EXPECT_EQ(result.ratio, 1);
  EXPECT_EQ(result.ratio_error, 0);
}

void expect_same(const Divergence& a, const Divergence& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.mean, b.mean);
  EXPECT_EQ(a.mean_error, b.mean_error);
  EXPECT_EQ(a.q99, b.q99);
  EXPECT_EQ(a.top1, b.top1);
  EXPECT_EQ(a.model.value, b.model.value);
  EXPECT_EQ(a.ratio, b.ratio);
}

TEST(Divergence, DoesNotDependOnChunks) {
  const auto run = [](int64_t chunk) {
    Formula p(50, random_logit(1, 5)), q(50, random_logit(2, 5));
    return divergence(p, q, random_ids(400, 50), {.context = 90, .stride = 31, .bos = 50}, chunk);
  };
  const Divergence whole = run(1000);
  for (const int64_t chunk : {1, 2, 13, 89}) expect_same(run(chunk), whole);
}

TEST(Divergence, NamesTheModelWithNonFiniteLogits) {
  Formula good(10, random_logit(1, 5)), bad(10, [](int64_t window, int64_t position, int64_t) {
    return window == 2 && position == 3 ? std::nan("") : 0.0;
  });
  const auto error = [&](LogitsSource& p, LogitsSource& q) {
    return test::error_of(ErrorCode::kBadInput,
                          [&] { divergence(p, q, random_ids(100, 10), {.context = 10}, 4); });
  };
  EXPECT_EQ(error(good, bad), "model: the logit of token 0 at position 3 of window 2 is nan");
  EXPECT_EQ(error(bad, good), "reference: the logit of token 0 at position 3 of window 2 is nan");
}

TEST(Divergence, ShapesMustMatch) {
  Formula p(10, random_logit(1, 5)), q(11, random_logit(1, 5));
  EXPECT_TRUE(
      test::says(test::error_of(ErrorCode::kInvalidArgument,
                                [&] { divergence(p, q, random_ids(9, 10), {.context = 5}, 4); }),
                 "model: want [4, 10]"));
}

class OfAModel : public testing::Test {
 protected:
  const Model model = Model::load("tests/golden/hf/mixed");
  const Context exact{.numerics = Numerics::kExact};
};

TEST_F(OfAModel, DoesNotDependOnChunks) {
  const Ids ids = random_ids(300, 97);
  const WindowOptions options{.context = 150, .stride = 100};
  const auto run = [&](int64_t chunk) {
    ModelLogits source(model, exact, options, chunk);
    return perplexity(source, ids, options, chunk);
  };
  const Perplexity whole = run(1000);
  EXPECT_EQ(whole.tokens, 299);
  for (const int64_t chunk : {1, 33}) {
    const Perplexity chunked = run(chunk);
    EXPECT_EQ(chunked.nll, whole.nll);
    EXPECT_EQ(chunked.error, whole.error);
  }
}

TEST_F(OfAModel, WindowsAreSeparateSequences) {
  const Ids ids = random_ids(200, 97);
  const WindowOptions options{.context = 101};
  ModelLogits both(model, exact, options, 64), second(model, exact, options, 64);
  const Perplexity all = perplexity(both, ids, options, 64),
                   tail = perplexity(second, {ids.begin() + 100, ids.end()}, options, 64);
  ModelLogits first(model, exact, options, 64);
  const Perplexity head = perplexity(first, {ids.begin(), ids.begin() + 101}, options, 64);
  ASSERT_EQ(all.tokens, 199);
  // One running mean against two: they differ by rounding.
  EXPECT_NEAR(all.nll, (100 * head.nll + 99 * tail.nll) / 199, 1e-12);
}

TEST_F(OfAModel, RejectsContextBeyondMaxPositions) {
  const WindowOptions options{.context = model.config().max_positions + 1};
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kBadInput, [&] { ModelLogits(model, exact, options, 64); }),
      "positions of tests/golden/hf/mixed"));
}

}  // namespace
}  // namespace dsv4
