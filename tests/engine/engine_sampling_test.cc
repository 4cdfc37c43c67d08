// What a request may ask of the sampler beside temperature and cuts: penalties, biases, the
// likeliest tokens, a least number of tokens, a constraint.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/engine.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int32_t kVocab = 97;

struct Answer {
  std::vector<Sampled> tokens;
  Finish finish = Finish::kCancelled;

  std::vector<int32_t> ids() const {
    std::vector<int32_t> out;
    for (const Sampled& token : tokens) out.push_back(token.id);
    return out;
  }
};

// Both answers have equal bits.
void expect_equal(const Answer& a, const Answer& b) {
  ASSERT_EQ(a.ids(), b.ids());
  EXPECT_EQ(a.finish, b.finish);
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    EXPECT_EQ(a.tokens[i].logprob, b.tokens[i].logprob);
    EXPECT_TRUE(std::ranges::equal(a.tokens[i].top, b.tokens[i].top,
                                   [](const LikelyToken& x, const LikelyToken& y) {
                                     return x.id == y.id && x.logprob == y.logprob;
                                   }))
        << i;
  }
}

class Collector : public TokenSink {
 public:
  void on_token(RequestId id, const Sampled& token) override {
    answers[id].tokens.push_back(token);
  }
  void on_finish(RequestId id, Finish why) override { answers[id].finish = why; }
  std::map<RequestId, Answer> answers;
};

// After a token t, only those may follow that leave the same rest modulo `step`; after `length`
// tokens, none. Throws from token `fails_at` on.
class SameRest : public TokenConstraint {
 public:
  explicit SameRest(int step, int length = 1000, int fails_at = 1000)
      : step_(step), length_(length), fails_at_(fails_at) {}

  State start() override { return 0; }
  State advance(State state, int32_t token) override {
    const State count = state / 100 + 1;
    return count > length_ ? kEnded : count * 100 + token % step_;
  }
  bool restricts(State state) override { return state > 0; }
  void mask(State state, std::span<uint32_t> out) override {
    if (state / 100 >= fails_at_) fail(ErrorCode::kResource, "too many states");
    std::fill(out.begin(), out.end(), 0);
    for (int32_t t = static_cast<int32_t>(state % 100); t < kVocab; t += step_)
      out[static_cast<size_t>(t) / 32] |= uint32_t{1} << (t % 32);
  }

 private:
  const int step_, length_, fails_at_;
};

// One token for ever.
class Only : public TokenConstraint {
 public:
  explicit Only(int32_t token) : token_(token) {}
  State start() override { return 0; }
  State advance(State, int32_t) override { return 0; }
  bool restricts(State) override { return true; }
  void mask(State, std::span<uint32_t> out) override {
    std::fill(out.begin(), out.end(), 0);
    out[static_cast<size_t>(token_) / 32] |= uint32_t{1} << (token_ % 32);
  }

 private:
  const int32_t token_;
};

class EngineSampling : public testing::Test {
 protected:
  static std::vector<int32_t> prompt(int64_t n, uint64_t seed) {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(kVocab)));
    return ids;
  }
  Answer alone(const std::vector<int32_t>& ids, const GenerateParams& params) const {
    Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 800});
    Collector sink;
    const RequestId id = engine.submit(ids, params, sink);
    while (engine.step()) {
    }
    return sink.answers[id];
  }
  // Logits after the last of these tokens.
  std::vector<float> logits(const std::vector<int32_t>& ids) const {
    const Buffer all = test::all_logits(model, Numerics::kExact, ids, 512);
    const float* last = all.view().row<float>(static_cast<int64_t>(ids.size()) - 1);
    return {last, last + kVocab};
  }

  Model model = Model::load("tests/golden/hf/mixed");
};

// Against the formulas of ops/model/sample/sample.h, with counts made anew for every token.
TEST_F(EngineSampling, GreedyWithPenaltiesAndBiases) {
  GenerateParams params{.sampling = {.temperature = 0,
                                     .repetition_penalty = 1.4f,
                                     .frequency_penalty = 0.3f,
                                     .presence_penalty = 0.2f},
                        .max_new_tokens = 25,
                        .logit_bias = {{3, 0.5f}, {90, -2.f}}};
  const std::vector<int32_t> ids = prompt(40, 1);
  const std::vector<int32_t> answer = alone(ids, params).ids();
  ASSERT_EQ(answer.size(), 25u);
  GenerateParams plain{.sampling = {.temperature = 0}, .max_new_tokens = 25};
  EXPECT_NE(alone(ids, plain).ids(), answer) << "the case tests nothing";
  std::vector<int32_t> all = ids;
  for (size_t i = 0; i < answer.size(); ++i) {
    std::vector<float> l = logits(all);
    for (int32_t t = 0; t < kVocab; ++t) {
      float& value = l[static_cast<size_t>(t)];
      const auto count = std::count(all.begin() + 40, all.end(), t);
      if (std::count(all.begin(), all.end(), t) > 0)
        value = value > 0 ? value / 1.4f : value * 1.4f;
      value = value - 0.3f * static_cast<float>(count);
      if (count > 0) value -= 0.2f;
      for (const LogitBias& bias : params.logit_bias) value += bias.id == t ? bias.bias : 0;
    }
    EXPECT_EQ(answer[i], std::max_element(l.begin(), l.end()) - l.begin()) << i;
    all.push_back(answer[i]);
  }
}

TEST_F(EngineSampling, TopLogprobsAreTheLikeliestOfTheLogitsAsGiven) {
  const std::vector<int32_t> ids = prompt(30, 2);
  const Answer answer = alone(ids, {.sampling = {.temperature = 0, .top_logprobs = 7},
                                    .max_new_tokens = 6,
                                    .logit_bias = {{5, 100.f}}});
  std::vector<int32_t> all = ids;
  for (const Sampled& token : answer.tokens) {
    EXPECT_EQ(token.id, 5);  // the bias, which log-probabilities do not show
    const std::vector<float> l = logits(all);
    std::vector<int32_t> order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
    });
    double sum = 0;
    for (const float value : l) sum += std::exp(static_cast<double>(value));
    ASSERT_EQ(token.top.size(), 7u);
    for (size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(token.top[i].id, order[i]);
      const double want = static_cast<double>(l[static_cast<size_t>(order[i])]) - std::log(sum);
      EXPECT_NEAR(token.top[i].logprob, want, 1e-5);  // f32 logits, sums in another order
    }
    all.push_back(token.id);
  }
}

// Beside a request whose log-probabilities are those of the logits as given.
TEST_F(EngineSampling, ProcessedLogprobsAreOfTheDraw) {
  const std::vector<int32_t> ids = prompt(30, 2);
  GenerateParams params{.sampling = {.temperature = 0.5f, .top_k = 3, .top_logprobs = 7},
                        .max_new_tokens = 6,
                        .logit_bias = {{5, 4.f}}};
  GenerateParams processed = params;
  processed.sampling.processed_logprobs = true;
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 800, .max_sequences = 2});
  Collector sink;
  const RequestId raw_id = engine.submit(ids, params, sink);
  const RequestId processed_id = engine.submit(ids, processed, sink);
  while (engine.step()) {
  }
  const Answer& raw = sink.answers[raw_id];
  const Answer& answer = sink.answers[processed_id];
  ASSERT_EQ(answer.ids(), raw.ids());
  expect_equal(raw, alone(ids, params));
  std::vector<int32_t> all = ids;
  for (size_t i = 0; i < answer.tokens.size(); ++i) {
    const Sampled& token = answer.tokens[i];
    std::vector<float> l = logits(all);
    l[5] += 4;
    std::vector<int32_t> order(kVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
    });
    const auto scaled = [&](int32_t id) {
      return static_cast<double>(l[static_cast<size_t>(id)]) / 0.5;
    };
    double sum = 0;
    for (size_t k = 0; k < 3; ++k) sum += std::exp(scaled(order[k]));
    ASSERT_EQ(token.top.size(), 3u) << "the others cannot be drawn";
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_EQ(token.top[k].id, order[k]);
      EXPECT_NEAR(token.top[k].logprob, scaled(order[k]) - std::log(sum), 1e-5);
    }
    EXPECT_NEAR(token.logprob, scaled(token.id) - std::log(sum), 1e-5);
    EXPECT_EQ(raw.tokens[i].top.size(), 7u);
    all.push_back(token.id);
  }
}

// Requests with every mixture of controls share slots, and some are preempted; each gets the bits
// that it gets alone.
TEST_F(EngineSampling, ControlsDoNotDependOnTheBatch) {
  EngineOptions options{.numerics = Numerics::kExact,
                        .deterministic = true,
                        .max_tokens = 800,
                        .max_sequences = 4,
                        .max_batch_tokens = 48};
  for (const int64_t cache_tokens : {0, 1024}) {
    options.cache_tokens = cache_tokens;
    Engine engine(model, options);
    Collector sink;
    std::map<RequestId, std::pair<std::vector<int32_t>, GenerateParams>> requests;
    Rng rng(11);
    for (uint64_t i = 0; i < 9; ++i) {
      GenerateParams params{.sampling = {.temperature = i % 3 == 0 ? 0 : 1.2f, .seed = i},
                            .max_new_tokens = i % 3 == 1 ? 30 : 640 + static_cast<int64_t>(i * 9)};
      if (i % 2 == 0) params.sampling.min_p = 0.05f;
      if (i % 4 < 2) params.sampling.repetition_penalty = 1.2f;
      if (i % 5 == 1) params.sampling.presence_penalty = 0.5f;
      if (i % 3 == 1) params.sampling.top_logprobs = static_cast<int>(i);
      if (i % 4 == 3) params.logit_bias = {{static_cast<int32_t>(i), 3.f}, {50, -INFINITY}};
      if (i % 4 == 3) params.logit_bias[1].bias = -50;
      if (i % 3 == 2) params.constraint = std::make_shared<SameRest>(7, 600);
      const std::vector<int32_t> ids = prompt(1 + rng.below(70), i);
      requests[engine.submit(ids, params, sink)] = {ids, params};
    }
    while (engine.step()) {
    }
    if (cache_tokens > 0) {
      EXPECT_GT(engine.stats().preemptions, 0) << "no request was preempted";
    }
    for (const auto& [id, request] : requests)
      expect_equal(sink.answers[id], alone(request.first, request.second));
  }
}

TEST_F(EngineSampling, ConstraintHoldsAndEnds) {
  for (const float temperature : {0.f, 1.5f}) {
    const Answer answer = alone(prompt(20, 3), {.sampling = {.temperature = temperature},
                                                .max_new_tokens = 60,
                                                .constraint = std::make_shared<SameRest>(9, 40)});
    EXPECT_EQ(answer.finish, Finish::kStop);
    ASSERT_EQ(answer.tokens.size(), 40u);
    for (const Sampled& token : answer.tokens) EXPECT_EQ(token.id % 9, answer.tokens[0].id % 9);
  }
}

TEST_F(EngineSampling, AConstraintThatFailsEndsItsRequestOnly) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 100, .max_sequences = 2});
  Collector sink;
  const GenerateParams plain{.sampling = {.temperature = 0}, .max_new_tokens = 30};
  GenerateParams failing = plain;
  failing.constraint = std::make_shared<SameRest>(5, 1000, 10);
  const RequestId bad = engine.submit(prompt(20, 1), failing, sink);
  const RequestId good = engine.submit(prompt(20, 2), plain, sink);
  while (engine.step()) {
  }
  EXPECT_EQ(sink.answers[bad].finish, Finish::kConstraintFailed);
  EXPECT_EQ(sink.answers[bad].tokens.size(), 10u);
  expect_equal(sink.answers[good], alone(prompt(20, 2), plain));
}

TEST_F(EngineSampling, StopTokensWaitForTheLeastNumberOfTokens) {
  const std::vector<int32_t> ids = prompt(50, 3);
  GenerateParams params{.sampling = {.temperature = 0}, .max_new_tokens = 20};
  params.stop = {alone(ids, params).tokens[0].id};
  EXPECT_EQ(alone(ids, params).tokens.size(), 0u);
  params.min_new_tokens = 6;
  const Answer answer = alone(ids, params);
  EXPECT_GE(answer.tokens.size(), 6u);
  for (const Sampled& token : answer.tokens) EXPECT_NE(token.id, params.stop[0]);
  // Where the constraint leaves nothing else, a stop token may come all the same.
  params.constraint = std::make_shared<Only>(params.stop[0]);
  EXPECT_EQ(alone(ids, params).tokens.size(), 0u);
  EXPECT_EQ(alone(ids, params).finish, Finish::kStop);
}

TEST_F(EngineSampling, RefusesParametersOutOfRange) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 64});
  Collector sink;
  EXPECT_THROW(engine.submit(prompt(5, 1), {.sampling = {.temperature = -1}}, sink), Error);
  EXPECT_THROW(engine.submit(prompt(5, 1), {.max_new_tokens = 2, .logit_bias = {{97, 1.f}}}, sink),
               Error);
  EXPECT_FALSE(engine.step());
}

}  // namespace
}  // namespace dsv4
