// Requests that begin with units in host memory or on a disk: the answers of requests alone, bit
// for bit, also after restarts and with damaged files. DSV4_CAMPAIGN=1000 makes the last test long
// (docs/spec/serving.md 10.4, campaign 2).

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <thread>

#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "tests/engine/stored_prefixes.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::Answers;
using test::join;
using test::kStep;

class EngineTiers : public test::StoredPrefixes {
 protected:
  // One checkpoint in the cache: everything else comes from the tiers.
  EngineOptions options(bool disk) const {
    EngineOptions options = StoredPrefixes::options(1);
    options.checkpoint_interval = 2 * kStep;
    options.model_identity = GetParam();
    options.tiers.ram_bytes = 64 << 20;
    options.longest_load = std::chrono::seconds(60);  // a slow machine is no miss here
    if (disk) options.tiers.folder = folder_.file("cache");
    return options;
  }
  // Runs a request and compares its answer with the one that it gets alone.
  int64_t cached_tokens(Engine& engine, const std::vector<int32_t>& prompt,
                        const GenerateParams& params) {
    Answers sink;
    const RequestId id = engine.submit(prompt, params, sink);
    finish(engine);
    EXPECT_EQ(sink.tokens[id], alone(prompt, params));
    return sink.cached[id];
  }

  test::TempFolder folder_;
};

TEST_P(EngineTiers, HostMemoryBringsBackWhatTheCacheGaveUp) {
  Engine engine(model_, options(false));
  const std::vector<int32_t> a = random_ids(1100, 1), b = random_ids(600, 2);
  EXPECT_EQ(cached_tokens(engine, a, sampled(5, 1)), 0);
  EXPECT_EQ(cached_tokens(engine, b, sampled(5, 2)), 0);
  EXPECT_EQ(engine.stats().checkpoints, 1);
  const std::vector<int32_t> turn = join(a, random_ids(20, 3));
  EXPECT_EQ(cached_tokens(engine, turn, sampled(5, 3)), 8 * kStep);
  EXPECT_EQ(engine.stats().ram_tokens, 8 * kStep);
  EXPECT_EQ(cached_tokens(engine, a, sampled(5, 4)), 8 * kStep) << "from the cache itself";
  EXPECT_EQ(engine.stats().ram_tokens, 8 * kStep);
  GenerateParams salted = sampled(5, 1);
  salted.salt = "another";
  Answers sink;
  const RequestId id = engine.submit(a, salted, sink);
  finish(engine);
  EXPECT_EQ(sink.cached[id], 0);
  engine.drop_prefixes();
  EXPECT_EQ(cached_tokens(engine, b, sampled(5, 2)), 0);
}

TEST_P(EngineTiers, TheDiskSurvivesARestart) {
  const std::vector<int32_t> a = random_ids(1100, 1), turn = join(a, random_ids(20, 3));
  {
    Engine engine(model_, options(true));
    EXPECT_EQ(cached_tokens(engine, a, sampled(5, 1)), 0);
  }
  {
    Engine engine(model_, options(true));
    EXPECT_EQ(cached_tokens(engine, turn, sampled(5, 3)), 8 * kStep);
    EXPECT_EQ(engine.stats().disk_tokens, 8 * kStep);
  }
  EngineOptions other = options(true);
  other.model_identity = "another model";
  Engine engine(model_, other);
  EXPECT_EQ(cached_tokens(engine, turn, sampled(5, 3)), 0);
}

TEST_P(EngineTiers, AnAnswerKeepsItsNewestCheckpoint) {
  EngineOptions many = options(false);
  many.prefix_checkpoints = 8;
  Engine engine(model_, many);
  const std::vector<int32_t> head = random_ids(20, 4);
  Answers sink;
  const RequestId first = engine.submit(head, sampled(800, 1), sink);
  finish(engine);
  EXPECT_EQ(engine.stats().checkpoints, 1);
  EXPECT_EQ(engine.stats().units.saved, 1) << "when it has ended";
  const std::vector<int32_t> turn = join(join(head, sink.tokens[first]), {1, 2, 3});
  EXPECT_EQ(cached_tokens(engine, turn, sampled(5, 2)), 6 * kStep);
  engine.drop_prefixes();
  EXPECT_EQ(engine.stats().checkpoints, 0);
}

// The second request finds its 512 tokens stored already, so its own checkpoint is that of 384.
TEST_P(EngineTiers, AnAnswerThatWasStoredAlready) {
  EngineOptions few = options(false);
  few.prefix_checkpoints = 3;
  Engine engine(model_, few);
  const std::vector<int32_t> head = random_ids(20, 4);
  const std::vector<int32_t> answer = alone(head, sampled(600, 1));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cached_tokens(engine, head, sampled(600, 1)), 0);
  EXPECT_EQ(cached_tokens(engine, random_ids(900, 5), sampled(5, 2)), 0);  // takes all places
  const std::vector<int32_t> begin(answer.begin(), answer.begin() + 370);
  EXPECT_EQ(cached_tokens(engine, join(head, begin), sampled(5, 2)), 3 * kStep);
  EXPECT_EQ(engine.stats().ram_tokens, 3 * kStep);
}

TEST_P(EngineTiers, OneConversationInAFile) {
  const std::vector<int32_t> a = random_ids(1100, 1), turn = join(a, random_ids(20, 3));
  const std::string file = folder_.file("conversation");
  {
    Engine engine(model_, options(false));
    cached_tokens(engine, a, sampled(5, 1));
    EXPECT_EQ(engine.save_prefix(file, a), 8 * kStep);
    EXPECT_EQ(engine.save_prefix(folder_.file("none"), random_ids(600, 9)), 0);
  }
  Engine engine(model_, options(false));
  engine.load_prefix(file);
  EXPECT_EQ(cached_tokens(engine, turn, sampled(5, 3)), 8 * kStep);
}

// Sequences share few pages: requests wait for units, are preempted, and find their own again.
TEST_P(EngineTiers, RandomLoadGivesTheAnswersOfRequestsAlone) {
  EngineOptions tight = options(true);
  tight.cache_tokens = 1400;
  tight.max_sequences = 4;
  tight.tiers.ram_bytes = 4 << 20;  // some units are on the disk only
  Rng rng(9);
  int64_t preempted = 0, from_ram = 0, from_disk = 0;
  for (int restart = 0; restart < 2; ++restart) {
    Engine engine(model_, tight);
    Answers sink;
    struct Asked {
      std::vector<int32_t> prompt;
      GenerateParams params;
    };
    std::map<RequestId, Asked> asked;
    while (asked.size() < 9 || engine.step()) {
      if (asked.size() < 9 && rng.below(3) == 0) {
        const std::vector<int32_t> shared =
            random_ids(900, 20 + static_cast<uint64_t>(rng.below(2)));
        const bool grows = asked.size() < 4;  // long answers outgrow what was expected of them
        const int64_t begin = grows ? 100 : 100 + rng.below(800);
        std::vector<int32_t> prompt(shared.begin(), shared.begin() + begin);
        prompt = join(std::move(prompt), random_ids(1 + rng.below(80), asked.size()));
        const GenerateParams params = sampled(grows ? 450 : 1 + rng.below(60), asked.size());
        asked[engine.submit(prompt, params, sink)] = {prompt, params};
      }
      engine.step();
    }
    for (const auto& [id, request] : asked)
      EXPECT_EQ(sink.tokens[id], alone(request.prompt, request.params)) << uint64_t(id);
    preempted += engine.stats().preemptions;
    from_ram += engine.stats().ram_tokens;
    from_disk += engine.stats().disk_tokens;
  }
  EXPECT_GT(preempted, 0);
  EXPECT_GT(from_ram, 0);
  EXPECT_GT(from_disk, 0);
}

// Campaign 2: one changed bit or a cut in a file is a miss, and the answer stays the same.
TEST_P(EngineTiers, DamagedUnitsAreMissesAndNoOtherTokens) {
  const char* wanted = std::getenv("DSV4_CAMPAIGN");
  const int rounds = wanted == nullptr ? 6 : std::atoi(wanted);
  const std::vector<int32_t> text = random_ids(300, 1);
  Rng rng(3);
  for (int round = 0; round < rounds; ++round) {
    { Engine(model_, options(true)).drop_prefixes(); }
    {
      Engine engine(model_, options(true));
      EXPECT_EQ(cached_tokens(engine, text, sampled(3, 1)), 0);
    }
    std::string damaged;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path())) {
      if (entry.path().extension() != ".dpc" || entry.path().parent_path().filename() == "bad")
        continue;
      damaged = entry.path().string();
    }
    ASSERT_FALSE(damaged.empty());
    std::string bytes = read_text_file(damaged);
    const auto at = static_cast<size_t>(rng.below(static_cast<int64_t>(bytes.size())));
    if (rng.below(4) == 0) {
      bytes.resize(at);
    } else {
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.below(8)));
    }
    std::ofstream(damaged, std::ios::binary) << bytes;
    Engine engine(model_, options(true));
    EXPECT_EQ(cached_tokens(engine, text, sampled(3, 1)), 0) << "byte " << at;
    EXPECT_EQ(engine.stats().units.bad_files, 1) << "byte " << at;
  }
}

// Two requests begin in one step. The plan of the second knows of no prefix, because its lookups
// are over; the first brings the prefix of both back into the cache.
TEST_P(EngineTiers, APrefixThatComesBackInTheStepOfItsSecondUser) {
  constexpr int64_t kStored = 2 * kStep;
  const std::vector<int32_t> text = random_ids(300, 1);
  const std::vector<int32_t> first = join(text, random_ids(3, 2)), second = join(text, {1, 2});
  {
    Engine engine(model_, options(true));
    EXPECT_EQ(cached_tokens(engine, text, sampled(3, 1)), 0);
  }
  EngineOptions impatient = options(true);
  impatient.longest_load = std::chrono::milliseconds(0);
  impatient.max_batch_tokens = 200;
  impatient.checkpoint_interval = impatient.max_tokens;  // or the long prompt ends its chunks there
  Engine engine(model_, impatient);
  Answers sink;
  engine.submit(random_ids(2 * impatient.max_batch_tokens + 1, 3), sampled(3, 3), sink);
  const RequestId late = engine.submit(second, sampled(3, 4), sink);
  engine.step();  // the long prompt takes all of it, and the second request gives its unit up
  for (int i = 0; i < 1000 && engine.stats().units.ram_units == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  GenerateParams urgent = sampled(3, 5);
  urgent.priority = 1;
  const RequestId early = engine.submit(first, urgent, sink);
  finish(engine);
  EXPECT_EQ(sink.cached[early], kStored);
  EXPECT_EQ(sink.cached[late], kStored) << "what the other one brought";
  EXPECT_EQ(engine.stats().disk_tokens + engine.stats().ram_tokens, kStored);
  EXPECT_EQ(sink.tokens[early], alone(first, urgent));
  EXPECT_EQ(sink.tokens[late], alone(second, sampled(3, 4)));
}

INSTANTIATE_TEST_SUITE_P(Models, EngineTiers, testing::ValuesIn(test::kModels),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace dsv4
