// What a drafter guesses follows from the tokens of a sequence alone: after chunks, rounds in
// which some drafts held, checkpoints and units, the drafts are those of a fresh sequence that was
// given the tokens in one chunk.

#include "dsv4/engine/model_drafter.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/engine.h"
#include "dsv4/engine/request_state.h"
#include "tests/harness/errors.h"
#include "tests/harness/random_model.h"
#include "tests/harness/temp_folder.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::random_ids;

constexpr int64_t kContext = 400, kStep = 128;

struct Mode {
  DrafterKind drafter;
  Numerics numerics;
};

class ModelDrafts : public testing::TestWithParam<Mode> {
 protected:
  std::unique_ptr<Executor> executor(int sequences, int checkpoints = 0) const {
    return std::make_unique<Executor>(model_, Context{.numerics = GetParam().numerics},
                                      CacheLimits{.max_tokens = kContext,
                                                  .max_sequences = sequences,
                                                  .max_batch_tokens = kContext,
                                                  .max_drafts = kMaxDrafts,
                                                  .checkpoints = checkpoints,
                                                  .drafter = GetParam().drafter});
  }
  static void feed(Executor& executor, SeqId seq, std::span<const int32_t> ids) {
    const Work work{seq, ids};
    executor.run({&work, 1});
  }
  // The newest token of the request is not in the cache yet.
  RequestState request(SeqId seq, std::span<const int32_t> tokens) const {
    const GenerateParams params{
        .sampling = {.temperature = 0.8f, .seed = 5, .repetition_penalty = 1.1f}};
    return {.tokens = {tokens.begin(), tokens.end()},
            .params = params,
            .terms = {params.sampling, {}, tokens.first(1)},
            .seq = seq,
            .generated = std::ssize(tokens) - 1};
  }
  struct Asked {
    SeqId seq;
    std::span<const int32_t> tokens;
    int64_t most;
  };
  std::vector<std::vector<int32_t>> drafts(Executor& executor,
                                           const std::vector<Asked>& asked) const {
    std::vector<RequestState> requests;
    for (const Asked& one : asked) requests.push_back(request(one.seq, one.tokens));
    std::vector<DraftWant> wants;
    for (size_t i = 0; i < asked.size(); ++i) {
      EXPECT_TRUE(executor.cache().reserve(asked[i].seq, 1 + asked[i].most));
      wants.push_back(
          {.request = &requests[i], .tokens = requests[i].tokens, .most = asked[i].most});
    }
    ModelDrafter(executor).propose(wants);
    std::vector<std::vector<int32_t>> made;
    for (const DraftWant& want : wants) {
      EXPECT_FALSE(want.failed);
      made.push_back(want.drafts);
    }
    return made;
  }
  std::vector<int32_t> fresh(std::span<const int32_t> tokens, int64_t most) const {
    const auto alone = executor(1);
    const SeqId seq = alone->cache().open();
    feed(*alone, seq, tokens.first(tokens.size() - 1));
    return drafts(*alone, {{seq, tokens, most}})[0];
  }

  const Model model_ =
      test::random_model(test::tiny_config_of(GetParam().drafter), 6, GetParam().drafter);
  // Drafts of a sequence, at most.
  const int64_t most_ =
      GetParam().drafter == DrafterKind::kDspark ? model_.config().dspark.block_size : kMaxDrafts;
  const int64_t vocab_ = model_.config().vocab_size;
};

// Three sequences with unequal numbers of drafts, of which any number holds, in steps beside each
// other and chunks in between.
TEST_P(ModelDrafts, AreThoseOfAFreshSequenceAfterAnyRounds) {
  const auto e = executor(3);
  Rng rng(7);
  std::vector<SeqId> seqs;
  std::vector<std::vector<int32_t>> texts;
  for (uint64_t s = 0; s < 3; ++s) {
    seqs.push_back(e->cache().open());
    texts.push_back(random_ids(kContext, vocab_, 30 + s));
    feed(*e, seqs[s], std::span(texts[s]).first(1 + static_cast<size_t>(rng.below(60))));
  }
  int64_t compared = 0;
  const auto length = [&](size_t s) { return e->cache().length(seqs[s]); };
  const auto tokens = [&](size_t s, int64_t n) {
    return std::span(texts[s]).first(static_cast<size_t>(n));
  };
  for (int round = 0; length(0) < 200; ++round) {
    std::vector<Asked> asked;
    for (size_t s = 0; s < 3; ++s)
      asked.push_back({seqs[s], tokens(s, length(s) + 1), 1 + rng.below(most_)});
    const std::vector<std::vector<int32_t>> made = drafts(*e, asked);
    for (size_t s = 0; s < 3; ++s) {
      ASSERT_EQ(std::ssize(made[s]), asked[s].most);
      if (round % 6 != static_cast<int>(s)) continue;
      ASSERT_EQ(made[s], fresh(asked[s].tokens, asked[s].most))
          << "sequence " << s << " of " << length(s) << " tokens, round " << round;
      ++compared;
    }
    // Which drafts hold is decided here: the text goes on as it does.
    std::vector<std::vector<int32_t>> ids(3);
    std::vector<Work> work;
    std::vector<int64_t> accepted;
    for (size_t s = 0; s < 3; ++s) {
      accepted.push_back(rng.below(asked[s].most + 1));
      ids[s].assign(texts[s].begin() + length(s), texts[s].begin() + length(s) + 1 + accepted[s]);
      for (int64_t i = accepted[s]; i < asked[s].most; ++i)
        ids[s].push_back(static_cast<int32_t>(rng.below(vocab_)));
      work.push_back(
          {.seq = seqs[s], .ids = ids[s], .logits = Work::Logits::kAll, .drafted = true});
    }
    e->run(work);
    for (size_t s = 0; s < 3; ++s) {
      for (int64_t i = 0; i <= accepted[s]; ++i) e->commit_one(seqs[s]);
      e->cache().truncate(seqs[s], length(s));
    }
    if (round % 4 == 0)
      feed(*e, seqs[1], std::span(texts[1]).subspan(static_cast<size_t>(length(1)), 3));
  }
  EXPECT_GT(compared, 10);
}

// A checkpoint inside a chunk; two sequences go on from it with different tokens.
TEST_P(ModelDrafts, AreThoseOfAFreshSequenceAfterAPrefix) {
  const std::vector<int32_t> text = random_ids(300, vocab_, 1);
  for (const int64_t after : {int64_t{1}, kStep - 1}) {
    const auto e = executor(3, 2);
    const SeqId first = e->cache().open();
    const auto prefix = std::span(text).first(kStep);
    const Work chunk{first, std::span(text).first(static_cast<size_t>(kStep + after)),
                     Work::Logits::kNone, kStep};
    e->start({&chunk, 1}, [&](size_t) { e->prefixes()->store(first, "", prefix); });
    for (uint64_t other = 0; other < 2; ++other) {
      std::vector<int32_t> own(prefix.begin(), prefix.end());
      const std::vector<int32_t> rest = random_ids(20, vocab_, 50 + other);
      own.insert(own.end(), rest.begin(), rest.end());
      const SeqId seq = e->cache().open();
      ASSERT_EQ(e->prefixes()->attach(seq, "", own).tokens, kStep);
      for (const size_t n : {size_t{1}, size_t{5}}) {
        const auto known = std::span(own).first(kStep + n);
        const auto cached = static_cast<size_t>(e->cache().length(seq));
        if (cached + 1 < known.size())
          feed(*e, seq, known.subspan(cached, known.size() - 1 - cached));
        EXPECT_EQ(drafts(*e, {{seq, known, 4}})[0], fresh(known, 4))
            << n << " tokens after the prefix, sequence " << other;
        e->cache().truncate(seq, e->cache().length(seq));
      }
    }
  }
}

// Counts what became of the drafts of each request.
struct Sink : TokenSink {
  void on_start(RequestId, int64_t cached) override { hits += cached; }
  void on_token(RequestId, const Sampled& token) override { tokens.push_back(token.id); }
  void on_finish(RequestId, Finish) override {}
  void on_stats(RequestId, const RequestStats& cost) override { stats = cost; }
  int64_t hits = 0;
  std::vector<int32_t> tokens;
  RequestStats stats;
};

// From the cache, from host memory, and in another engine from the disk: the same drafts hold.
TEST_P(ModelDrafts, HoldAsOftenAfterEveryTier) {
  const test::TempFolder folder;
  EngineOptions options{.numerics = GetParam().numerics,
                        .max_tokens = kContext,
                        .prefix_checkpoints = 4,
                        .model_identity = "random",
                        .speculate = speculate_with_drafter(model_),
                        .draft_tokens = 4};
  const std::vector<int32_t> text = random_ids(140, vocab_, 9);
  const GenerateParams params{.sampling = {.temperature = 1, .seed = 8}, .max_new_tokens = 60};
  const auto ask = [&](Engine& engine) {
    Sink sink;
    engine.submit(text, params, sink);
    while (engine.step()) engine.check_invariants();
    return sink;
  };
  Engine plain(model_, options);
  const Sink alone = ask(plain);
  EXPECT_EQ(alone.hits, 0);
  const auto expect_same = [&](const Sink& got, const char* tier) {
    EXPECT_EQ(got.hits, kStep) << tier;
    EXPECT_EQ(got.tokens, alone.tokens) << tier;
    EXPECT_EQ(got.stats.drafts.accepted, alone.stats.drafts.accepted) << tier;
    EXPECT_EQ(got.stats.drafts.drafted, alone.stats.drafts.drafted) << tier;
  };
  expect_same(ask(plain), "cache");
  options.tiers = {.ram_bytes = int64_t{16} << 20,
                   .folder = folder.file("units"),
                   .disk_bytes = int64_t{64} << 20};
  {
    Engine tiered(model_, options);
    EXPECT_EQ(ask(tiered).tokens, alone.tokens);
    tiered.drop_prefixes(PrefixTier::kCache);
    expect_same(ask(tiered), "host memory");
    tiered.flush_prefixes();
  }
  Engine next(model_, options);
  expect_same(ask(next), "disk");
  fmt::print("{} of {} drafts held\n", alone.stats.drafts.all_accepted(),
             alone.stats.drafts.all_drafted());
  EXPECT_GT(alone.stats.drafts.all_accepted(), 0);
}

// An answer that ends inside a round leaves nothing to the next sequence in its slot: one that
// begins with a stored prefix, whose last streams reach its first drafts. The window is short, so
// that the drafts depend on them.
TEST(Mtp, AnEndInsideARoundLeavesNothingBehind) {
  auto json = nlohmann::json::parse(test::tiny_config_json());
  json["sliding_window"] = 3;
  const ModelConfig config = parse_config(json.dump(), "test config");
  const Model model = test::random_model(config, 6, DrafterKind::kMtp);
  const EngineOptions options{.max_tokens = kContext,
                              .prefix_checkpoints = 4,
                              .speculate = Speculate::kMtp,
                              .draft_tokens = 4};
  const std::vector<int32_t> text = random_ids(kStep + 1, config.vocab_size, 9);
  const auto ask = [&](Engine& engine, uint64_t seed, std::vector<int32_t> stop) {
    Sink sink;
    const SamplingParams sampling{.temperature = 1, .seed = seed};
    engine.submit(text, {.sampling = sampling, .max_new_tokens = 16, .stop = std::move(stop)},
                  sink);
    while (engine.step()) engine.check_invariants();
    return sink;
  };
  Engine engine(model, options);
  ask(engine, 0, {});
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Sink before = ask(engine, seed, {});
    ASSERT_EQ(before.hits, kStep);
    ask(engine, seed, {before.tokens[5], before.tokens[6]});
    const Sink after = ask(engine, seed, {});
    EXPECT_EQ(after.tokens, before.tokens);
    EXPECT_EQ(after.stats.drafts.accepted, before.stats.drafts.accepted) << seed;
  }
}

// A drafter that computes no numbers proposes nothing, and answers are those without.
TEST_P(ModelDrafts, ADrafterWithoutNumbersOnlyCosts) {
  const ConstTensorView& norm = model_.weights().drafter->norm;
  const_cast<uint16_t*>(norm.as<uint16_t>())[3] = 0x7fc0;  // NaN
  const std::vector<int32_t> text = random_ids(20, vocab_, 3);
  std::vector<int32_t> tokens[2];
  for (const bool on : {false, true}) {
    Engine engine(model_, {.numerics = GetParam().numerics,
                           .max_tokens = 100,
                           .speculate = on ? speculate_with_drafter(model_) : Speculate::kOff,
                           .draft_tokens = 3});
    Sink sink;
    engine.submit(text, {.sampling = {.seed = 1}, .max_new_tokens = 40}, sink);
    while (engine.step()) {
    }
    tokens[on] = sink.tokens;
    EXPECT_EQ(engine.stats().speculation.failed > 0, on);
    EXPECT_EQ(sink.stats.drafts.drafted[static_cast<size_t>(DraftSource::kDrafter)], 0);
  }
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[0].size(), 40u);
}

// A block guesses no more than it was trained to.
TEST(Dspark, MoreDraftsThanItsBlockAreRefused) {
  const Model model = test::random_model(test::tiny_dspark_config(), 6, DrafterKind::kDspark);
  const auto make = [&](int64_t drafts) {
    Engine engine(model,
                  {.max_tokens = 100, .speculate = Speculate::kDspark, .draft_tokens = drafts});
  };
  EXPECT_NO_THROW(make(5));
  EXPECT_EQ(test::error_of(ErrorCode::kBadInput, [&] { make(7); }),
            "7 drafts of each round: the model's DSpark block guesses 5");
}

// The bundled block is trained: its first drafts of a held-out text hold often (docs/speculation.md
// has the shares over more text). Those of a random block hold once in a thousand.
TEST(Mtp, TheBundledBlockGuessesTheBundledModel) {
  const Model model = Model::load("models/demo", DrafterKind::kMtp);
  const auto ids = nlohmann::json::parse(read_text_file("tests/golden/demo/logits.json"))
                       .at("ids")
                       .get<std::vector<int32_t>>();
  for (const float temperature : {0.f, 1.f}) {
    Engine engine(model, {.max_tokens = 500, .speculate = Speculate::kMtp, .draft_tokens = 1});
    Sink sink;
    engine.submit({ids.begin(), ids.begin() + 120},
                  {.sampling = {.temperature = temperature, .seed = 2}, .max_new_tokens = 200},
                  sink);
    while (engine.step()) {
    }
    constexpr auto kDrafter = static_cast<size_t>(DraftSource::kDrafter);
    const auto drafted = static_cast<double>(sink.stats.drafts.drafted[kDrafter]),
               accepted = static_cast<double>(sink.stats.drafts.accepted[kDrafter]);
    fmt::print("temperature {}: {} of {} drafts held\n", temperature, accepted, drafted);
    EXPECT_GT(drafted, 20);
    EXPECT_GT(accepted, 0.65 * drafted) << "temperature " << temperature;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ModelDrafts,
                         testing::Values(Mode{DrafterKind::kMtp, Numerics::kOfficial},
                                         Mode{DrafterKind::kMtp, Numerics::kExact},
                                         Mode{DrafterKind::kDspark, Numerics::kOfficial},
                                         Mode{DrafterKind::kDspark, Numerics::kExact}),
                         [](const auto& mode) {
                           return fmt::format("{}_{}", name(mode.param.drafter),
                                              name(mode.param.numerics));
                         });

}  // namespace
}  // namespace dsv4
