#include "dsv4/engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <stdexcept>
#include <thread>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

// Collects answers; may cancel a request after a given number of its tokens.
class Collector : public TokenSink {
 public:
  void on_token(RequestId id, const Sampled& token) override {
    EXPECT_LE(token.logprob, 0.f);
    tokens[id].push_back(token.id);
    if (cancel_after > 0 && static_cast<int>(tokens[id].size()) == cancel_after) engine->cancel(id);
  }
  void on_finish(RequestId id, Finish why) override {
    EXPECT_EQ(finished.count(id), 0u) << "finished twice";
    finished[id] = why;
  }

  void on_stats(RequestId id, const RequestStats& stats) override {
    preemptions[id] = stats.preemptions;
  }

  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, Finish> finished;
  std::map<RequestId, int> preemptions;
  Engine* engine = nullptr;
  int cancel_after = 0;
};

class EngineTest : public testing::Test {
 protected:
  static constexpr int64_t kVocab = 97;

  std::vector<int32_t> prompt(int64_t n, uint64_t seed) const {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(kVocab)));
    return ids;
  }
  static GenerateParams greedy(int64_t n) {
    return {.sampling = {.temperature = 0}, .max_new_tokens = n};
  }
  static GenerateParams sampled(int64_t n, uint64_t seed) {
    return {.sampling = {.temperature = 0.9f, .top_p = 0.95f, .seed = seed}, .max_new_tokens = n};
  }
  std::vector<int32_t> alone(const std::vector<int32_t>& ids, const GenerateParams& params) const {
    Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 1000});
    Collector sink;
    const RequestId id = engine.submit(ids, params, sink);
    while (engine.step()) {
    }
    return sink.tokens[id];
  }

  Model model = Model::load("tests/golden/hf/mixed");
};

TEST_F(EngineTest, GreedyFollowsTheLargestLogit) {
  std::vector<int32_t> ids = prompt(140, 1);
  const std::vector<int32_t> answer = alone(ids, greedy(12));
  ASSERT_EQ(answer.size(), 12u);
  for (const int32_t token : answer) {
    const Buffer logits = test::all_logits(model, Numerics::kExact, ids, 512);
    const float* last = logits.view().row<float>(static_cast<int64_t>(ids.size()) - 1);
    EXPECT_EQ(token, std::max_element(last, last + kVocab) - last);
    ids.push_back(token);
  }
}

// Nine requests of different lengths share four slots and a small batch; each gets the same answer
// as alone.
TEST_F(EngineTest, AnswersDoNotDependOnTheBatch) {
  Engine engine(model, {.numerics = Numerics::kExact,
                        .deterministic = true,
                        .max_tokens = 400,
                        .max_sequences = 4,
                        .max_batch_tokens = 48});
  Collector sink;
  std::map<RequestId, std::pair<std::vector<int32_t>, GenerateParams>> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    const std::vector<int32_t> ids = prompt(1 + static_cast<int64_t>(i * 37 % 211), i);
    const GenerateParams params = sampled(5 + static_cast<int64_t>(i * 7 % 30), i);
    requests[engine.submit(ids, params, sink)] = {ids, params};
  }
  while (engine.step()) {
  }
  ASSERT_EQ(sink.finished.size(), requests.size());
  for (const auto& [id, request] : requests) {
    EXPECT_EQ(sink.finished[id], Finish::kLength);
    EXPECT_EQ(sink.tokens[id], alone(request.first, request.second));
  }
}

// Two long prompts are in the engine when a short one arrives; it does not wait for their ends.
TEST_F(EngineTest, AShortPromptPassesLongOnes) {
  Engine engine(model, {.numerics = Numerics::kExact,
                        .max_tokens = 900,
                        .max_sequences = 4,
                        .max_batch_tokens = 64,
                        .long_prompt = 100});
  Collector sink;
  const RequestId first = engine.submit(prompt(800, 1), greedy(1), sink),
                  second = engine.submit(prompt(800, 2), greedy(1), sink);
  engine.step();
  const RequestId third = engine.submit(prompt(12, 3), greedy(2), sink);
  for (int i = 0; i < 4; ++i) engine.step();
  EXPECT_TRUE(sink.finished.contains(third));
  EXPECT_FALSE(sink.finished.contains(first) || sink.finished.contains(second));
  while (engine.step()) {
  }
  EXPECT_EQ(sink.finished.size(), 3u);
}

// With cache for two or three of five requests, some are preempted in the middle of their answers
// and recompute their tokens; each gets the same answer as alone.
TEST_F(EngineTest, PreemptedRequestsGetTheSameAnswers) {
  for (const int64_t cache_tokens : {1024, 1300}) {
    Engine engine(model, {.numerics = Numerics::kExact,
                          .deterministic = true,
                          .max_tokens = 800,
                          .max_sequences = 5,
                          .cache_tokens = cache_tokens,
                          .max_batch_tokens = 48});
    Collector sink;
    std::map<RequestId, std::pair<std::vector<int32_t>, GenerateParams>> requests;
    for (uint64_t i = 0; i < 5; ++i) {
      const std::vector<int32_t> ids = prompt(5 + static_cast<int64_t>(i * 11), i);
      const GenerateParams params = sampled(700 - static_cast<int64_t>(i * 13), i);
      requests[engine.submit(ids, params, sink)] = {ids, params};
    }
    while (engine.step()) {
    }
    EXPECT_GT(engine.stats().preemptions, 0) << "no request was preempted";
    for (const auto& [id, request] : requests) {
      EXPECT_EQ(sink.finished[id], Finish::kLength);
      EXPECT_EQ(sink.tokens[id], alone(request.first, request.second)) << cache_tokens;
    }
  }
}

// Requests of a higher priority come three times, as many as are let in beside the first one, and
// outgrow the page of 256 tokens that was expected of them. The first one goes on without its
// tokens, or from a checkpoint.
TEST_F(EngineTest, PreemptionsChangeNoToken) {
  for (const auto& [checkpoints, preemptions] : {std::pair(0, 3), std::pair(4, 1)}) {
    Engine engine(model, {.numerics = Numerics::kExact,
                          .deterministic = true,
                          .max_tokens = 1000,
                          .max_sequences = 5,
                          .cache_tokens = 5 * 256,
                          .max_batch_tokens = 128,
                          .prefix_checkpoints = checkpoints});
    Collector sink;
    GenerateParams params = sampled(800, 1);
    params.priority = -1;
    const RequestId first = engine.submit(prompt(2, 1), params, sink);
    engine.step();
    for (const int others : {4, 3, 1}) {
      for (int i = 0; i < others; ++i) engine.submit(prompt(2, 2), sampled(300, 2), sink);
      for (size_t wanted = sink.finished.size() + others; sink.finished.size() < wanted;)
        ASSERT_TRUE(engine.step());
    }
    while (engine.step()) {
    }
    EXPECT_EQ(sink.preemptions.at(first), preemptions) << checkpoints;
    EXPECT_EQ(sink.tokens.at(first), alone(prompt(2, 1), params)) << checkpoints;
  }
}

// One request at a time, and there is always one of a higher priority that waits too.
TEST_F(EngineTest, APriorityStarvesNoRequest) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 100, .max_sequences = 1});
  Collector sink;
  GenerateParams low = greedy(2);
  low.priority = -2;
  engine.submit(prompt(3, 1), greedy(2), sink);
  const RequestId waits = engine.submit(prompt(3, 2), low, sink);
  int others = 0;
  for (; others < 100 && !sink.finished.contains(waits); ++others) {
    engine.submit(prompt(3, 3), greedy(2), sink);
    for (const size_t wanted = sink.finished.size() + 1; sink.finished.size() < wanted;)
      ASSERT_TRUE(engine.step());
  }
  EXPECT_GT(others, 16) << "a priority counts";
  EXPECT_LT(others, 40);
}

TEST_F(EngineTest, StopTokenEndsTheAnswerAndIsNotDelivered) {
  const std::vector<int32_t> ids = prompt(50, 3);
  const std::vector<int32_t> full = alone(ids, greedy(10));
  GenerateParams params = greedy(10);
  params.stop = {full[4]};
  const auto end = std::find(full.begin(), full.end(), full[4]);
  EXPECT_EQ(alone(ids, params), std::vector<int32_t>(full.begin(), end));
}

TEST_F(EngineTest, CancelFromASink) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 200, .max_sequences = 2});
  Collector sink;
  sink.engine = &engine;
  sink.cancel_after = 3;
  const RequestId first = engine.submit(prompt(20, 1), greedy(50), sink);
  const RequestId second = engine.submit(prompt(20, 2), greedy(50), sink);
  const RequestId waiting = engine.submit(prompt(20, 3), greedy(50), sink);
  while (engine.step()) {
  }
  for (const RequestId id : {first, second, waiting}) {
    EXPECT_EQ(sink.finished[id], Finish::kCancelled);
    EXPECT_EQ(sink.tokens[id].size(), 3u);
  }
  engine.cancel(first);  // finished: ignored
  EXPECT_FALSE(engine.step());
}

// The first one's time is up when it has three tokens at most, the second one's while it waits.
TEST_F(EngineTest, ADeadlineEndsAnAnswer) {
  struct SlowSink : Collector {
    void on_token(RequestId id, const Sampled& token) override {
      Collector::on_token(id, token);
      if (tokens[id].size() == 3) std::this_thread::sleep_until(until);
    }
    std::chrono::steady_clock::time_point until;
  };
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 200, .max_sequences = 1});
  SlowSink slow;
  slow.until = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  Collector sink;
  GenerateParams params = greedy(50);
  params.deadline = slow.until;
  const RequestId running = engine.submit(prompt(20, 1), params, slow),
                  waiting = engine.submit(prompt(20, 2), params, sink),
                  other = engine.submit(prompt(20, 3), greedy(50), sink);
  while (engine.step()) engine.check_invariants();
  EXPECT_EQ(slow.finished.at(running), Finish::kLength);
  EXPECT_LE(slow.tokens[running].size(), 3u);
  EXPECT_EQ(sink.finished.at(waiting), Finish::kLength);
  EXPECT_EQ(sink.tokens.count(waiting), 0u);
  EXPECT_EQ(sink.tokens.at(other), alone(prompt(20, 3), greedy(50)));
}

TEST_F(EngineTest, RejectsRequestsThatDoNotFit) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 64});
  Collector sink;
  const auto error = [&](const std::vector<int32_t>& ids, int64_t n) -> std::string {
    try {
      engine.submit(ids, greedy(n), sink);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error({}, 1), "the prompt is empty");
  EXPECT_EQ(error({5, 97}, 1), "token id 97 at position 1 is outside [0, 97)");
  EXPECT_EQ(error({-1}, 1), "token id -1 at position 0 is outside [0, 97)");
  EXPECT_EQ(error(prompt(60, 1), 5),
            "prompt of 60 tokens and answer of up to 5 do not fit the cache of 64 tokens");
  EXPECT_EQ(error(prompt(59, 1), 5), "accepted");
  EXPECT_EQ(error(prompt(5, 1), 0), "max_new_tokens must be at least 1, got 0");
  EXPECT_NE(error(prompt(5, 1), std::numeric_limits<int64_t>::max()), "accepted");
  while (engine.step()) {
  }
  EXPECT_EQ(sink.finished.size(), 1u);
}

// A sink that throws once, or submits a new request when another finishes.
class Troublemaker : public Collector {
 public:
  void on_token(RequestId id, const Sampled& token) override {
    Collector::on_token(id, token);
    if (throw_at > 0 && static_cast<int>(tokens[id].size()) == throw_at)
      throw std::runtime_error("sink");
  }
  void on_finish(RequestId id, Finish why) override {
    Collector::on_finish(id, why);
    if (!next.empty())
      engine->submit(std::exchange(next, {}), {.sampling = {.temperature = 0}, .max_new_tokens = 3},
                     *this);
  }
  int throw_at = 0;
  std::vector<int32_t> next;
};

TEST_F(EngineTest, ThrowingSinkDoesNotAffectOtherRequests) {
  const std::vector<int32_t> ids = prompt(30, 8);
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 100, .max_sequences = 2});
  Troublemaker trouble;
  trouble.throw_at = 3;
  Collector other;
  const RequestId bad = engine.submit(prompt(20, 7), greedy(8), trouble);
  const RequestId good = engine.submit(ids, greedy(8), other);
  int thrown = 0;
  for (bool more = true; more;) {
    try {
      more = engine.step();
    } catch (const std::runtime_error&) {
      ++thrown;
    }
  }
  EXPECT_EQ(thrown, 1);
  EXPECT_EQ(trouble.tokens[bad].size(), 8u);
  // The other request misses only the token of the step that threw.
  std::vector<int32_t> want = alone(ids, greedy(8));
  want.erase(want.begin() + 2);
  EXPECT_EQ(other.tokens[good], want);
  EXPECT_EQ(other.finished[good], Finish::kLength);
}

TEST_F(EngineTest, SinkMaySubmit) {
  Engine engine(model, {.numerics = Numerics::kExact, .max_tokens = 100});
  Troublemaker sink;
  sink.engine = &engine;
  sink.next = prompt(12, 9);
  const RequestId first = engine.submit(prompt(20, 7), greedy(4), sink);
  engine.cancel(first);
  while (engine.step()) {
  }
  EXPECT_EQ(sink.finished[first], Finish::kCancelled);
  ASSERT_EQ(sink.finished.size(), 2u);
  EXPECT_EQ(sink.tokens.rbegin()->second, alone(prompt(12, 9), greedy(3)));
}

TEST_F(EngineTest, OfficialNumericsNamesTheUnsupportedDim) {
  try {
    Engine engine(model, {.numerics = Numerics::kOfficial, .max_tokens = 64});
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "official numerics quantizes keys in groups of 64, but head_dim - qk_rope_head_dim = "
              "24; use --numerics exact");
  }
}

}  // namespace
}  // namespace dsv4
