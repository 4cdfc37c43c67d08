// Requests that begin with a stored prefix: the same answers, fewer tokens computed.

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "tests/engine/stored_prefixes.h"

namespace dsv4 {
namespace {

using test::Answers;
using test::join;
using test::kStep;

class EnginePrefix : public test::StoredPrefixes {};

TEST_P(EnginePrefix, ASecondTurnComputesOnlyWhatIsNew) {
  Engine engine(model_, options(8));
  Answers sink;
  const std::vector<int32_t> head = random_ids(600, 1);
  const RequestId first = engine.submit(head, sampled(40, 1), sink);
  finish(engine);
  EXPECT_EQ(sink.cached[first], 0);
  EXPECT_EQ(sink.tokens[first], alone(head, sampled(40, 1)));

  const int64_t before = engine.stats().prefill_tokens;
  const std::vector<int32_t> turn = join(join(head, sink.tokens[first]), random_ids(30, 2));
  const RequestId second = engine.submit(turn, sampled(40, 2), sink);
  finish(engine);
  EXPECT_EQ(sink.cached[second], 4 * kStep);
  EXPECT_EQ(engine.stats().prefill_tokens - before, 670 - 4 * kStep);
  EXPECT_EQ(engine.stats().cached_tokens, 4 * kStep);
  const RequestStats& cost = sink.stats[second];
  EXPECT_EQ(cost.prompt_tokens, 670);
  EXPECT_EQ(cost.cached_tokens, 4 * kStep);
  EXPECT_EQ(cost.ram_tokens + cost.disk_tokens, 0);
  EXPECT_EQ(cost.answer_tokens, 40);
  EXPECT_GT(cost.prefill_seconds, 0);
  EXPECT_GE(cost.queue_seconds, 0);
  EXPECT_EQ(sink.tokens[second], alone(turn, sampled(40, 2)));
}

TEST_P(EnginePrefix, AnAnswerIsAPrefixToo) {
  Engine engine(model_, options(8));
  Answers sink;
  const std::vector<int32_t> head = random_ids(20, 3);
  const RequestId first = engine.submit(head, sampled(300, 1), sink);
  finish(engine);
  const std::vector<int32_t> turn = join(join(head, sink.tokens[first]), {1, 2, 3});
  const RequestId second = engine.submit(turn, sampled(10, 2), sink);
  finish(engine);
  EXPECT_EQ(sink.cached[second], 2 * kStep);
  EXPECT_EQ(sink.tokens[second], alone(turn, sampled(10, 2)));
}

TEST_P(EnginePrefix, TheLastTokenIsAlwaysComputed) {
  Engine engine(model_, options(8));
  Answers sink;
  const std::vector<int32_t> head = random_ids(2 * kStep, 4);
  for (const int64_t want : {int64_t{0}, kStep}) {
    const RequestId id = engine.submit(head, sampled(5, 1), sink);
    finish(engine);
    EXPECT_EQ(sink.cached[id], want);
    EXPECT_EQ(sink.tokens[id], alone(head, sampled(5, 1)));
  }
}

// Without its own places, a prompt of 1,000 tokens has one checkpoint, at 896.
TEST_P(EnginePrefix, OtherTextsShareABeginningUpToAFork) {
  Engine engine(model_, options(8));
  Answers sink;
  const std::vector<int32_t> head = random_ids(600, 11);
  GenerateParams params = sampled(3, 1);
  params.forks = {600, 5, 5000};
  engine.submit(join(head, random_ids(400, 12)), params, sink);
  finish(engine);
  EXPECT_EQ(engine.stats().checkpoints, 2);
  const std::vector<int32_t> other = join(head, random_ids(300, 13));
  const RequestId id = engine.submit(other, sampled(20, 2), sink);
  finish(engine);
  EXPECT_EQ(sink.cached[id], 4 * kStep);
  EXPECT_EQ(sink.tokens[id], alone(other, sampled(20, 2)));
}

TEST_P(EnginePrefix, SaltsShareNothing) {
  Engine engine(model_, options(8));
  Answers sink;
  const std::vector<int32_t> head = random_ids(300, 5);
  std::vector<int64_t> cached;
  for (const char* salt : {"a", "b", "a"}) {
    GenerateParams params = sampled(3, 1);
    params.salt = salt;
    const RequestId id = engine.submit(head, params, sink);
    finish(engine);
    cached.push_back(sink.cached[id]);
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 2 * kStep}));
}

// Requests that share beginnings arrive at random at an engine with room for two long ones: they
// wait, are preempted, evict prefixes and find some. Their answers are those that they get alone.
TEST_P(EnginePrefix, RandomLoadGivesTheAnswersOfRequestsAlone) {
  EngineOptions tight = options(4);
  tight.cache_tokens = 1400;
  tight.max_sequences = 4;
  tight.checkpoint_interval = 2 * kStep;
  Engine engine(model_, tight);
  Answers sink;
  Rng rng(9);
  struct Asked {
    std::vector<int32_t> prompt;
    GenerateParams params;
  };
  std::map<RequestId, Asked> asked;
  while (asked.size() < 9 || engine.step()) {
    if (asked.size() < 9 && rng.below(3) == 0) {
      const std::vector<int32_t> shared = random_ids(900, 20 + static_cast<uint64_t>(rng.below(2)));
      // Long answers outgrow what their admission expected.
      const bool grows = asked.size() < 4;
      const int64_t begin = grows ? 100 : 100 + rng.below(800);
      std::vector<int32_t> prompt(shared.begin(), shared.begin() + begin);
      prompt = join(std::move(prompt), random_ids(1 + rng.below(80), asked.size()));
      const GenerateParams params = sampled(grows ? 450 : 1 + rng.below(60), asked.size());
      asked[engine.submit(prompt, params, sink)] = {prompt, params};
    }
    engine.step();
  }
  int64_t found = 0;
  for (const auto& [id, request] : asked) {
    EXPECT_EQ(sink.tokens[id], alone(request.prompt, request.params)) << "request " << uint64_t(id);
    found += sink.cached[id] > 0 ? 1 : 0;
  }
  EXPECT_GT(found, 0);

  EXPECT_GT(engine.stats().preemptions, 0);
}

// Two texts share 700 tokens, and only their ends have checkpoints. The second makes one where they
// part, from which the third begins.
TEST_P(EnginePrefix, TextsPartWhereACheckpointIsMade) {
  Engine engine(model_, options(8));
  Answers sink;
  const std::vector<int32_t> shared = random_ids(700, 31);
  const auto run = [&](uint64_t seed) {
    const std::vector<int32_t> prompt = join(shared, random_ids(300, seed));
    const RequestId id = engine.submit(prompt, sampled(8, seed), sink);
    finish(engine);
    EXPECT_EQ(sink.tokens[id], alone(prompt, sampled(8, seed)));
    return sink.cached[id];
  };
  EXPECT_EQ(run(32), 0);
  EXPECT_EQ(run(33), 0);
  EXPECT_EQ(run(34), 5 * kStep);
}

// Pages for one long answer and a half: the request of the lowest priority makes room, whenever it
// arrived, and after three times the others do.
TEST_P(EnginePrefix, TheLowestPriorityIsPreempted) {
  EngineOptions tight = options(0);
  tight.cache_tokens = 1400;
  Engine engine(model_, tight);
  Answers sink;
  std::vector<std::vector<int32_t>> prompts;
  std::vector<RequestId> ids;
  for (const int priority : {0, -1, 1}) {
    prompts.push_back(random_ids(100, 40 + prompts.size()));
    GenerateParams params = sampled(700, prompts.size());
    params.priority = priority;
    ids.push_back(engine.submit(prompts.back(), params, sink));
  }
  finish(engine);
  EXPECT_GE(sink.stats[ids[1]].preemptions, 1);
  EXPECT_EQ(sink.stats[ids[2]].preemptions, 0);
  EXPECT_LE(sink.stats[ids[0]].preemptions, sink.stats[ids[1]].preemptions);
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(sink.tokens[ids[i]], alone(prompts[i], sampled(700, i + 1))) << i;
}

// Any chunks, and 31 others in the batch.
TEST_P(EnginePrefix, TheSameTokensAmong31OthersInAnyChunks) {
  for (const int64_t batch_tokens : {45, 333}) {
    EngineOptions many = options(8);
    many.max_sequences = 32;
    many.max_batch_tokens = batch_tokens;
    many.cache_tokens = 4000;
    Engine engine(model_, many);
    Answers sink;
    std::vector<std::vector<int32_t>> prompts;
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 32; ++i) {
      const std::vector<int32_t> shared = random_ids(300, 50 + i % 3);
      prompts.push_back(join(shared, random_ids(1 + static_cast<int64_t>(i) * 5, 60 + i)));
      ids.push_back(engine.submit(prompts.back(), sampled(24, i), sink));
    }
    finish(engine);
    for (size_t i = 0; i < ids.size(); ++i)
      EXPECT_EQ(sink.tokens[ids[i]], alone(prompts[i], sampled(24, i)))
          << i << " in steps of " << batch_tokens;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EnginePrefix, testing::ValuesIn(test::kModels),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace dsv4
