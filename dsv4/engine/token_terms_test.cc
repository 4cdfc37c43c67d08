#include "dsv4/engine/token_terms.h"

#include <gtest/gtest.h>

#include <map>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/sample_lists.h"

namespace dsv4 {
namespace {

TEST(TokenTerms, EqualCountsOverPromptAndAnswer) {
  Rng rng(7);
  for (int round = 0; round < 50; ++round) {
    SamplingParams sampling;
    if (rng.below(2) == 0) sampling.repetition_penalty = 1.3f;
    if (rng.below(2) == 0) sampling.frequency_penalty = 0.5f;
    if (rng.below(2) == 0) sampling.presence_penalty = -0.5f;
    const bool repeats = sampling.repetition_penalty != 1;
    const bool counts =
        repeats || sampling.frequency_penalty != 0 || sampling.presence_penalty != 0;
    std::map<int32_t, TokenTerm> expected;
    std::vector<LogitBias> biases;
    for (int32_t id = 0; id < 40; id += 1 + static_cast<int32_t>(rng.below(20))) {
      biases.push_back({id, static_cast<float>(rng.below(100)) - 50});
      expected[id].bias = biases.back().bias;
    }
    std::vector<int32_t> prompt;
    for (int64_t i = rng.below(60); i > 0; --i) {
      prompt.push_back(static_cast<int32_t>(rng.below(40)));
      if (repeats) expected[prompt.back()].seen = 1;
    }
    TokenTerms terms(sampling, biases, prompt);
    for (int64_t i = rng.below(60); i > 0; --i) {
      const auto token = static_cast<int32_t>(rng.below(40));
      terms.add(token);
      if (counts) expected[token].seen = 1, ++expected[token].count;
    }
    ASSERT_EQ(terms.list().size(), expected.size());
    size_t i = 0;
    for (const auto& [id, want] : expected) {
      const TokenTerm& have = terms.list()[i++];
      EXPECT_EQ(have.id, id);
      EXPECT_EQ(have.count, want.count) << id;
      EXPECT_EQ(have.seen, want.seen) << id;
      EXPECT_EQ(have.bias, want.bias) << id;
    }
  }
}

TEST(TokenTerms, RefusesWhatTheSamplerCannotTake) {
  const auto refusal = [](const SamplingParams& sampling, std::vector<LogitBias> biases = {}) {
    try {
      check_sampling(sampling, biases, 100);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kBadInput);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.temperature = -1}), "temperature is -1, want 0 or more");
  EXPECT_EQ(refusal({.temperature = NAN}), "temperature is nan, want 0 or more");
  EXPECT_EQ(refusal({.top_p = 0}), "top_p is 0, want more than 0 and at most 1");
  EXPECT_EQ(refusal({.min_p = 1.5f}), "min_p is 1.5, want 0 to 1");
  EXPECT_EQ(refusal({.repetition_penalty = 0}), "repetition_penalty is 0, want more than 0");
  EXPECT_EQ(refusal({.top_logprobs = 21}), "top_logprobs is 21, want 0 to 20");
  EXPECT_EQ(refusal({}, {{100, 1.f}}), "the bias of token 100 is outside the vocabulary of 100");
  EXPECT_EQ(refusal({}, {{5, 1.f}, {5, 2.f}}), "token 5 has two biases");
  EXPECT_EQ(refusal({}, {{5, INFINITY}}), "logit_bias is inf, want finite numbers");
  EXPECT_EQ(refusal({}, std::vector<LogitBias>(1025)), "1025 tokens have a bias, at most 1024 may");
}

// Rows with and without terms and masks; the lists of each are its own.
TEST(SampleLists, KeepRowsApart) {
  const std::vector<TokenTerm> terms = {{.id = 3, .bias = 1}, {.id = 9, .count = 2, .seen = 1}};
  SampleLists lists(70);  // 3 words a mask
  lists.add({.seed = 1}, 10);
  EXPECT_TRUE(lists.rows().term_begin.empty());
  EXPECT_TRUE(lists.rows().mask.empty());
  lists.add({.seed = 2, .top_logprobs = 4}, 11, terms);
  lists.mask()[1] = 5;
  lists.add({.seed = 3}, 12);
  const SampleRows rows = lists.rows();
  EXPECT_EQ(rows.count(), 3);
  EXPECT_EQ(rows.most_top_logprobs(), 4);
  EXPECT_EQ(std::vector<int32_t>(rows.term_begin.begin(), rows.term_begin.end()),
            (std::vector<int32_t>{0, 0, 2, 2}));
  const uint32_t all = ~uint32_t{0};
  EXPECT_EQ(std::vector<uint32_t>(rows.mask.begin(), rows.mask.end()),
            (std::vector<uint32_t>{all, all, all, all, 5, all, all, all, all}));
}

// A step of the most rows and terms fits between the offsets.
TEST(SampleLayout, HasRoomForTheLargestStep) {
  const int64_t rows = 5, vocab = 1000, terms = max_token_terms(vocab, 64);
  EXPECT_EQ(terms, 1000);
  EXPECT_EQ(max_token_terms(129280, 4096), 4096 + kMaxLogitBiases);
  const SampleLayout at(rows, vocab, rows * terms);
  const auto size = [](size_t bytes) { return static_cast<int64_t>(bytes); };
  EXPECT_GE(at.steps_at - at.params_at, rows * size(sizeof(SamplingParams)));
  EXPECT_GE(at.begin_at - at.steps_at, rows * 8);
  EXPECT_GE(at.terms_at - at.begin_at, (rows + 1) * 4);
  EXPECT_GE(at.mask_at - at.terms_at, rows * terms * size(sizeof(TokenTerm)));
  EXPECT_GE(at.ids_at - at.mask_at, rows * 32 * 4);
  EXPECT_GE(at.logprobs_at - at.ids_at, rows * 4);
  EXPECT_GE(at.top_ids_at - at.logprobs_at, rows * 4);
  EXPECT_GE(at.top_logprobs_at - at.top_ids_at, rows * kMaxTopLogprobs * 4);
  EXPECT_GE(at.bytes - at.top_logprobs_at, rows * kMaxTopLogprobs * 4);
}

}  // namespace
}  // namespace dsv4
