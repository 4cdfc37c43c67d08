// An engine over several ranks answers as one on one rank, to the bit of every log-probability:
// batches, prompts in chunks, prefixes that come back from the cache, from host memory and from a
// disk that another number of ranks wrote, speculation by lookup and by the MTP block, whose drafts
// are those of one rank. And what becomes of it when a rank throws
// or stalls. engine_ranks_gpu_test runs it with ranks that share a GPU, under --deterministic.

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"
#include "tests/model/golden_files.h"
#if DSV4_TESTS_ON_GPU
#include "tests/harness/gpu.h"
#endif

namespace dsv4 {
namespace {

using test::random_ids;

struct Answers : TokenSink {
  void on_start(RequestId id, int64_t stored) override { cached[id] = stored; }
  void on_token(RequestId id, const Sampled& token) override {
    tokens[id].push_back(token.id);
    logprobs[id].push_back(token.logprob);
  }
  void on_finish(RequestId, Finish) override {}

  std::map<RequestId, int64_t> cached;
  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, std::vector<float>> logprobs;
  bool operator==(const Answers& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && cached == other.cached;
  }
};

#if DSV4_TESTS_ON_GPU
// Before CUDA is used.
const bool kPrepared = (prepare_shared_gpus(), true);
constexpr bool kDeterministic = true;
constexpr int kWorld = 2;
constexpr const char* kPlaceOfStall = "";  // or at the end of the step
// A rank that sleeps has to come back before the program ends, which would wait for its GPU.
constexpr std::chrono::seconds kStall{6};
// Making graphs takes a while.
constexpr std::chrono::milliseconds kLimit{2000};
#else
constexpr bool kDeterministic = false;
constexpr int kWorld = 3;
constexpr const char* kPlaceOfStall = "embedding)";
constexpr std::chrono::hours kStall{1};  // until the test ends
constexpr std::chrono::milliseconds kLimit{200};
#endif

constexpr auto kSliced = ExpertsPlacement::kSliced, kWhole = ExpertsPlacement::kWhole;

struct World {
  int ranks;
  ExpertsPlacement experts = kSliced;
};
std::string world_name(const testing::TestParamInfo<World>& info) {
  return fmt::format("{}_{}", info.param.ranks, name(info.param.experts));
}

Model load_ranks(int world, ExpertsPlacement placement = kSliced,
                 DrafterKind drafter = DrafterKind::kNone) {
  Model model = Model::load("models/demo", world, placement, drafter);
#if DSV4_TESTS_ON_GPU
  std::string names = "cuda:0";
  for (int rank = 1; rank < world; ++rank) names += ",cuda:0";
  move_to_devices(model, open_devices(names), [](int64_t, int64_t) {}, 0,
                  {.need_batch_invariant = true});
#endif
  return model;
}

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

GenerateParams sampled(int64_t n, uint64_t seed) {
  return {.sampling = {.temperature = seed % 3 == 0 ? 0.f : 0.9f, .top_p = 0.95f, .seed = seed},
          .max_new_tokens = n};
}

void finish(Engine& engine) {
  while (engine.step()) {
  }
  engine.check_invariants();
}

class EngineRanks : public testing::TestWithParam<World> {
 protected:
  void SetUp() override {
#if DSV4_TESTS_ON_GPU
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
#endif
  }
  static Model one_rank() {
    return load_ranks(1);
  }
  static Model ranks() {
    return load_ranks(GetParam().ranks, GetParam().experts);
  }
  static Model ranks_with_mtp() {
    return load_ranks(GetParam().ranks, GetParam().experts, DrafterKind::kMtp);
  }
  static int64_t vocab() {
    return 1536;
  }
};

// Six requests share three slots and small steps; a third of the prompts are scored.
Answers run_batch(const Model& model) {
  Engine engine(model, {.deterministic = kDeterministic,
                        .max_tokens = 300,
                        .max_sequences = 3,
                        .max_batch_tokens = 48,
                        .max_scored_tokens = 8});
  Answers sink;
  for (uint64_t i = 0; i < 6; ++i) {
    GenerateParams params = sampled(5 + static_cast<int64_t>(i * 7 % 20), i);
    params.score_prompt = i % 3 == 1;
    engine.submit(random_ids(1 + static_cast<int64_t>(i * 37 % 151), 1536, i), params, sink);
  }
  finish(engine);
  return sink;
}

TEST_P(EngineRanks, AnswerABatchAsOneRank) {
  static const Answers want = run_batch(one_rank());
  ASSERT_EQ(want.tokens.size(), 6u);
  EXPECT_TRUE(run_batch(ranks()) == want);
}

// A conversation of three turns; between them another one takes its place in the cache, so it comes
// back from host memory. Then a restart with another number of ranks finds both on the disk.
struct Conversation {
  Answers sink;
  int64_t ram_tokens = 0, disk_tokens = 0, accepted = 0;
};

EngineOptions with_disk(const test::TempFolder& folder, const Model& model, bool speculate) {
  EngineOptions options{.deterministic = kDeterministic,
                        .max_tokens = 900,
                        .max_batch_tokens = 300,
                        .prefix_checkpoints = 1};
  if (speculate) options.speculate = speculate_with_drafter(model), options.draft_tokens = 3;
  options.checkpoint_interval = 128;
  options.model_identity = "demo";
  options.tiers.ram_bytes = 64 << 20;
  options.tiers.folder = folder.file("cache");
  options.longest_load = std::chrono::seconds(60);  // a slow machine is no miss here
  return options;
}

Conversation converse(const Model& first, const Model& second, const test::TempFolder& folder,
                      bool speculate = false) {
  Conversation result;
  const std::vector<int32_t> a = random_ids(400, 1536, 1), b = random_ids(300, 1536, 2);
  const auto ask = [&](Engine& engine, const std::vector<int32_t>& prompt, uint64_t seed) {
    engine.submit(prompt, sampled(6, seed), result.sink);
    finish(engine);
  };
  {
    Engine engine(first, with_disk(folder, first, speculate));
    ask(engine, a, 1);
    ask(engine, join(a, random_ids(30, 1536, 3)), 2);  // from the cache itself
    ask(engine, b, 3);
    ask(engine, join(a, random_ids(60, 1536, 4)), 4);  // from host memory
    result.ram_tokens = engine.stats().ram_tokens;
    result.accepted = engine.stats().speculation.counts.all_accepted();
    engine.flush_prefixes();
  }
  Engine engine(second, with_disk(folder, second, speculate));
  Answers after;
  engine.submit(join(a, random_ids(90, 1536, 5)), sampled(6, 5), after);
  finish(engine);
  result.disk_tokens = engine.stats().disk_tokens;
  result.accepted += engine.stats().speculation.counts.all_accepted();
  for (auto& [id, tokens] : after.tokens) {  // ids begin again
    const auto later = static_cast<RequestId>(static_cast<uint64_t>(id) + 100);
    result.sink.tokens[later] = tokens;
    result.sink.logprobs[later] = after.logprobs[id];
    result.sink.cached[later] = after.cached[id];
  }
  return result;
}

TEST_P(EngineRanks, PrefixesComeBackOnEveryRank) {
  static const Model one = one_rank();
  static const Conversation want = [] {
    const test::TempFolder folder;
    return converse(one, one, folder);
  }();
  EXPECT_EQ(want.ram_tokens, 384);
  EXPECT_EQ(want.disk_tokens, 384);
  const Model many = ranks();
  for (const bool disk_of_one : {false, true}) {
    const test::TempFolder folder;
    const Conversation got =
        disk_of_one ? converse(one, many, folder) : converse(many, one, folder);
    EXPECT_TRUE(got.sink == want.sink)
        << "the disk is written by " << (disk_of_one ? 1 : GetParam().ranks);
    EXPECT_EQ(got.ram_tokens, want.ram_tokens);
    EXPECT_EQ(got.disk_tokens, want.disk_tokens);
  }
}

// Drafts are looked up in a text that the client predicts, here the answer with some wrong tokens.
struct Drafted {
  Answers sink;
  int64_t drafted = 0, accepted = 0;
};
Drafted predicted(const Model& model, std::vector<int32_t> prediction) {
  const bool speculate = !prediction.empty();
  Engine engine(model, {.deterministic = kDeterministic,
                        .max_tokens = 200,
                        .speculate = speculate ? Speculate::kLookup : Speculate::kOff,
                        .draft_tokens = speculate ? 3 : 0});
  for (size_t i = 7; i < prediction.size(); i += 13) prediction[i] = 5;
  GenerateParams params = sampled(50, 1);
  params.prediction = std::move(prediction);
  Drafted drafted;
  engine.submit(random_ids(40, 1536, 8), params, drafted.sink);
  finish(engine);
  drafted.drafted = engine.stats().speculation.counts.all_drafted();
  drafted.accepted = engine.stats().speculation.counts.all_accepted();
  return drafted;
}

TEST_P(EngineRanks, SpeculationChangesNoToken) {
  static const Drafted want = predicted(one_rank(), {});
  const std::vector<int32_t>& answer = want.sink.tokens.begin()->second;
  ASSERT_EQ(answer.size(), 50u);
  const Drafted got = predicted(ranks(), answer);
  EXPECT_TRUE(got.sink == want.sink);
  EXPECT_GT(got.accepted, 10);
  EXPECT_GT(got.drafted, got.accepted) << "wrong ones are taken back";
}

// Four requests beside each other, with penalties and a text that is known in part.
struct Guessed {
  Answers sink;
  SpeculationStats stats;
};
Guessed guess(const Model& model, Speculate speculate, int64_t drafts) {
  Engine engine(model, {.deterministic = kDeterministic,
                        .max_tokens = 200,
                        .max_sequences = 3,
                        .max_batch_tokens = 64,
                        .speculate = speculate,
                        .draft_tokens = drafts});
  Guessed guessed;
  for (uint64_t i = 0; i < 4; ++i) {
    GenerateParams params = sampled(20 + static_cast<int64_t>(i * 9), i);
    if (i == 2) params.sampling.repetition_penalty = 1.2f;
    if (i == 3) params.prediction = random_ids(9, 1536, 4);
    engine.submit(random_ids(20 + static_cast<int64_t>(i * 31), 1536, 10 + i), params,
                  guessed.sink);
  }
  finish(engine);
  guessed.stats = engine.stats().speculation;
  return guessed;
}

TEST_P(EngineRanks, GuessAsOneRank) {
  static const Model one = load_ranks(1, kSliced, DrafterKind::kMtp);
  static const Guessed plain = guess(one, Speculate::kOff, 0);
  static const Guessed want = guess(one, Speculate::kMtp, 3);
  constexpr auto kDrafter = static_cast<size_t>(DraftSource::kDrafter);
  ASSERT_GT(want.stats.counts.accepted[kDrafter], 10);
  ASSERT_GT(want.stats.counts.drafted[kDrafter], want.stats.counts.accepted[kDrafter]);
  const Model many = ranks_with_mtp();
  const Guessed got = guess(many, Speculate::kMtp, 3);
  EXPECT_TRUE(got.sink == plain.sink);
  EXPECT_EQ(got.stats.counts.drafted, want.stats.counts.drafted);
  EXPECT_EQ(got.stats.counts.accepted, want.stats.counts.accepted);
  EXPECT_EQ(got.stats.accepted_at, want.stats.accepted_at);
  EXPECT_EQ(got.stats.round_tokens, want.stats.round_tokens);
  EXPECT_EQ(got.stats.failed, 0);
  // How many drafts a step has follows from times here.
  EXPECT_TRUE(guess(many, Speculate::kMtp, 0).sink == plain.sink);
}

// With the drafter's rows and the streams of the newest token, so that drafts go on as before.
TEST_P(EngineRanks, PrefixesComeBackForTheDrafterOfEveryRank) {
  static const Model one = load_ranks(1, kSliced, DrafterKind::kMtp);
  static const auto of_one = [](bool speculate) {
    const test::TempFolder folder;
    return converse(one, one, folder, speculate);
  };
  static const Conversation plain = of_one(false), want = of_one(true);
  EXPECT_TRUE(want.sink == plain.sink);
  EXPECT_GT(want.accepted, 0);
  const Model many = ranks_with_mtp();
  for (const bool disk_of_one : {false, true}) {
    const test::TempFolder folder;
    const Conversation got =
        disk_of_one ? converse(one, many, folder, true) : converse(many, one, folder, true);
    EXPECT_TRUE(got.sink == want.sink)
        << "the disk is written by " << (disk_of_one ? 1 : GetParam().ranks);
    EXPECT_EQ(got.ram_tokens, want.ram_tokens);
    EXPECT_EQ(got.disk_tokens, want.disk_tokens);
    EXPECT_EQ(got.accepted, want.accepted);
  }
}

#if DSV4_TESTS_ON_GPU
INSTANTIATE_TEST_SUITE_P(Worlds, EngineRanks,
                         testing::Values(World{2}, World{4}, World{2, kWhole}, World{4, kWhole}),
                         world_name);
#elif defined(DSV4_SANITIZED)
INSTANTIATE_TEST_SUITE_P(Worlds, EngineRanks, testing::Values(World{3}, World{3, kWhole}),
                         world_name);
#else
INSTANTIATE_TEST_SUITE_P(Worlds, EngineRanks,
                         testing::Values(World{2}, World{3}, World{4}, World{2, kWhole},
                                         World{3, kWhole}, World{4, kWhole}),
                         world_name);
#endif

// Runs until the engine throws: its sentence, and how long the step took.
struct Failure {
  std::string text, later;  // of the step that failed, and of the one after it
  double seconds = 0;
};

// The fault of `ranks` is in a step, or in drafts.
Failure run_with_fault(int world, const RankOptions& ranks) {
  const bool drafts = ranks.before_draft != nullptr;
  const Model model = load_ranks(world, kSliced, drafts ? DrafterKind::kMtp : DrafterKind::kNone);
  EngineOptions options{.deterministic = kDeterministic, .max_tokens = 200};
  if (drafts) options.speculate = Speculate::kMtp, options.draft_tokens = 2;
  options.ranks = ranks;
  Engine engine(model, options);
  Answers sink;
  engine.submit(random_ids(60, 1536, 1), sampled(50, 1), sink);
  Failure failure;
  for (bool goes_on = true; goes_on && failure.text.empty();) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      goes_on = engine.step();
    } catch (const Error& error) {
      failure.text = error.what();
    }
    failure.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  failure.later = test::error_of(ErrorCode::kUnsupported, [&] { engine.step(); });
  EXPECT_FALSE(sink.tokens.empty()) << "steps before the fault gave tokens";
  return failure;
}

TEST(EngineRanksFault, ARankThatThrows) {
#if DSV4_TESTS_ON_GPU
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
#endif
  const RankOptions in_step{.limit = std::chrono::seconds(20),
                            .before_step = [](ShardId id, int64_t step) {
                              if (id.rank == 1 && step == 5)
                                fail(ErrorCode::kResource, "no memory left");
                            }};
  const RankOptions in_drafts{.limit = std::chrono::seconds(20),
                              .before_draft = [round = 0](ShardId id) mutable {
                                if (id.rank == 1 && ++round == 3)
                                  fail(ErrorCode::kResource, "no memory left");
                              }};
  for (const RankOptions& ranks : {in_step, in_drafts}) {
    const Failure failure = run_with_fault(kWorld, ranks);
    EXPECT_EQ(failure.text, "rank 1: no memory left");
    EXPECT_LT(failure.seconds, 1);
    EXPECT_NE(failure.later.find("start a new engine"), std::string::npos);
  }
}

TEST(EngineRanksFault, ARankThatStalls) {
#if DSV4_TESTS_ON_GPU
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
#endif
  for (const int rank : {0, kWorld - 1}) {
    const Failure failure =
        run_with_fault(kWorld, {.limit = kLimit, .before_step = [rank](ShardId id, int64_t step) {
                                  if (id.rank == rank && step == 5)
                                    std::this_thread::sleep_for(kStall);
                                }});
    EXPECT_TRUE(test::says(failure.text,
                           fmt::format("no answer from rank {} for {} s ({}", rank,
                                       static_cast<double>(kLimit.count()) / 1000, kPlaceOfStall)));
    EXPECT_LT(failure.seconds, 1 + static_cast<double>(kLimit.count()) / 1000);
    EXPECT_NE(failure.later.find("start a new engine"), std::string::npos);
  }
}

}  // namespace
}  // namespace dsv4
