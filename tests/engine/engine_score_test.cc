// Log-probabilities of a prompt's own tokens (GenerateParams::score_prompt): those of the logits of
// the whole, however few rows of logits a step has, and the answer stays what it is without them.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/engine.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int32_t kVocab = 97;

class Collector : public TokenSink {
 public:
  struct Answer {
    std::vector<Sampled> prompt, tokens;
  };
  void on_prompt_token(RequestId id, const Sampled& token) override {
    EXPECT_TRUE(answers[id].tokens.empty()) << "after the first token";
    answers[id].prompt.push_back(token);
  }
  void on_token(RequestId id, const Sampled& token) override {
    answers[id].tokens.push_back(token);
  }
  void on_finish(RequestId, Finish) override {}
  std::map<RequestId, Answer> answers;
};

std::vector<int32_t> prompt(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(kVocab)));
  return ids;
}

// In fp64, of the logits that predict token i.
double log_softmax(const Buffer& logits, int64_t i, int32_t token) {
  const float* row = logits.view().row<float>(i - 1);
  double sum = 0;
  for (int32_t t = 0; t < kVocab; ++t) sum += std::exp(static_cast<double>(row[t]));
  return static_cast<double>(row[token]) - std::log(sum);
}

class EngineScore : public testing::Test {
 protected:
  void expect_scores(const std::vector<int32_t>& ids, const std::vector<Sampled>& scores) const {
    ASSERT_EQ(scores.size() + 1, ids.size());
    const Buffer logits = test::all_logits(model, Numerics::kExact, ids, 512);
    for (size_t i = 1; i < ids.size(); ++i) {
      const Sampled& score = scores[i - 1];
      EXPECT_EQ(score.id, ids[i]);
      // f32 logits, sums in another order
      EXPECT_NEAR(score.logprob, log_softmax(logits, static_cast<int64_t>(i), ids[i]), 1e-5);
      ASSERT_EQ(score.top.size(), 2u);
      EXPECT_NEAR(score.top[0].logprob,
                  log_softmax(logits, static_cast<int64_t>(i), score.top[0].id), 1e-5);
      EXPECT_GE(score.top[0].logprob, score.logprob);
      EXPECT_GE(score.top[0].logprob, score.top[1].logprob);
    }
  }

  Model model = Model::load("tests/golden/hf/mixed");
};

// Prompts of several lengths side by side, with and without a score; stored prefixes would spare
// what must be computed, and a small cache preempts.
TEST_F(EngineScore, IsThatOfTheWholePrompt) {
  for (const int64_t rows : {1, 5, 64}) {
    for (const int64_t cache_tokens : {0, 1024}) {
      Engine engine(model, {.numerics = Numerics::kExact,
                            .deterministic = true,
                            .max_tokens = 800,
                            .max_sequences = 4,
                            .cache_tokens = cache_tokens,
                            .max_batch_tokens = 40,
                            .prefix_checkpoints = 4,
                            .max_scored_tokens = rows});
      Collector sink;
      struct Request {
        std::vector<int32_t> ids;
        RequestId scored, plain;
      };
      std::vector<Request> requests;
      for (const int64_t length : {1, 2, 70, 150}) {
        GenerateParams params{.sampling = {.temperature = 0.8f, .seed = 5, .top_logprobs = 2},
                              .max_new_tokens = 640};
        Request request{.ids = prompt(length, static_cast<uint64_t>(length))};
        request.plain = engine.submit(request.ids, params, sink);
        params.score_prompt = true;
        request.scored = engine.submit(request.ids, params, sink);
        requests.push_back(request);
      }
      while (engine.step()) {
      }
      EXPECT_EQ(engine.stats().preemptions > 0, cache_tokens > 0) << "the case tests nothing";
      for (const Request& request : requests) {
        const auto &scored = sink.answers[request.scored], &plain = sink.answers[request.plain];
        EXPECT_TRUE(plain.prompt.empty());
        expect_scores(request.ids, scored.prompt);
        ASSERT_EQ(scored.tokens.size(), plain.tokens.size());
        for (size_t i = 0; i < plain.tokens.size(); ++i)
          EXPECT_EQ(scored.tokens[i].id, plain.tokens[i].id);
      }
    }
  }
}

TEST_F(EngineScore, IsRefusedWithoutRows) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 64});
  Collector sink;
  EXPECT_THROW(engine.submit(prompt(5, 1), {.max_new_tokens = 2, .score_prompt = true}, sink),
               Error);
}

}  // namespace
}  // namespace dsv4
