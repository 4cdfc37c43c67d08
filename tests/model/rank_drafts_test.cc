// Drafts of a model over several ranks are those of one rank: every guess, what the drafter says of
// it, the logits that it was drawn from on every rank, and the drafter's rows in the caches. Ranks
// are threads; some own no head, no expert row or no row of the vocabulary.

#include <gtest/gtest.h>

#include <chrono>

#include "dsv4/base/rng.h"
#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/executor.h"
#include "tests/harness/errors.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"
#include "tests/model/rank_bytes.h"

namespace dsv4 {
namespace {

using test::Bytes;
using test::random_ids;

constexpr auto kSliced = ExpertsPlacement::kSliced, kWhole = ExpertsPlacement::kWhole;
constexpr auto kMtp = DrafterKind::kMtp, kDspark = DrafterKind::kDspark;
constexpr size_t kSequences = 3;
constexpr int64_t kMost = 5;  // guesses

struct Case {
  const char* model;
  DrafterKind drafter;
  Numerics numerics;
  ExpertsPlacement placement = kSliced;
  bool draft_head = false;
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& one = info.param;
  std::string text = fmt::format("{}_{}_{}", one.model, name(one.drafter), name(one.numerics));
  if (one.placement == kWhole) text += "_whole";
  if (one.draft_head) text += "_k4";
  return text;
}

std::shared_ptr<const ModelSpec> spec_of(const Case& of) {
  const std::string model = of.model;
  if (model == "demo") return ModelSpec::load("models/demo", of.placement);
  const ModelConfig config =
      model == "pro" ? test::small_pro_config() : test::tiny_config_of(of.drafter);
  return test::random_model(config, 7, of.drafter, of.placement).shared_spec();
}

struct Trace {
  std::vector<std::vector<int32_t>> ids;  // of each round and sequence
  std::vector<float> chances;
  std::vector<Bytes> logits;  // [world]: of each round's last pass, or of its block
  std::vector<Bytes> caches;  // [world]
};

// Rounds of drafts for three sequences beside each other, and between them chunks, or the newest
// token and drafts of which some hold.
class Rounds {
 public:
  Rounds(const Model& model, const Case& of)
      : executor_(model, {.numerics = of.numerics},
                  {.max_tokens = 300,
                   .max_sequences = kSequences,
                   .max_batch_tokens = 150,
                   .max_drafts = kMost,
                   .drafter = of.drafter,
                   .draft_head = of.draft_head}),
        vocab_(model.config().vocab_size) {
    for (size_t i = 0; i < kSequences; ++i) {
      seqs_.push_back(executor_.cache().open());
      texts_.push_back(random_ids(300, vocab_, 20 + i));
    }
  }

  Trace run() {
    Trace trace;
    for (int round = 0; round < 7; ++round) {
      round % 3 == 2 ? verify() : feed();
      draft(trace);
    }
    trace.caches = test::caches_of(executor_);
    return trace;
  }

 private:
  int64_t length(size_t i) const { return executor_.cache().length(seqs_[i]); }
  std::span<const int32_t> next(size_t i, int64_t count) const {
    return std::span(texts_[i]).subspan(static_cast<size_t>(length(i)), static_cast<size_t>(count));
  }

  void feed() {
    std::vector<Work> work;
    for (size_t i = 0; i < kSequences; ++i)
      work.push_back({seqs_[i], next(i, 1 + rng_.below(40)), Work::Logits::kLast});
    executor_.run(work);
  }
  void verify() {
    std::vector<Work> work;
    for (size_t i = 0; i < kSequences; ++i) {
      work.push_back({seqs_[i], next(i, 1 + rng_.below(4)), Work::Logits::kLast});
      work.back().drafted = true;
    }
    executor_.run(work);
    for (size_t i = 0; i < kSequences; ++i) {
      const int64_t held = 1 + rng_.below(std::ssize(work[i].ids));
      for (int64_t n = 0; n < held; ++n) executor_.commit_one(seqs_[i]);
      executor_.cache().truncate(seqs_[i], length(i));
    }
    executor_.keep_streams();
  }
  void draft(Trace& trace) {
    std::vector<Executor::DraftRow> rows;
    SampleLists lists(vocab_);
    int64_t most = kMost;
    for (size_t i = 0; i < kSequences; ++i) {
      rows.push_back({seqs_[i], next(i, 1)[0], most});
      ASSERT_TRUE(executor_.cache().reserve(seqs_[i], 1 + most));
      const std::vector<TokenTerm> terms = {{.id = 3, .count = 2, .seen = 1, .bias = -1}};
      lists.add({.temperature = i == 1 ? 0.f : 0.8f, .seed = i, .frequency_penalty = 0.5f},
                static_cast<uint64_t>(length(i)), std::span(terms).first(i == 2 ? 0 : 1));
      if (i == 0) lists.mask()[0] = 0x0ff0ff0f;
      most -= rng_.below(most);
    }
    for (const Executor::Guesses& guesses : executor_.draft(rows, lists.rows())) {
      trace.ids.push_back(guesses.ids);
      trace.chances.insert(trace.chances.end(), guesses.chances.begin(), guesses.chances.end());
    }
    const int64_t used = model_draws_blocks() ? kSequences * kMost : 1;
    test::append(trace.logits,
                 test::on_every_rank(executor_, executor_.draft_logits().slice(0, 0, used)));
  }
  bool model_draws_blocks() const { return executor_.limits().drafter == kDspark; }

  Executor executor_;
  const int64_t vocab_;
  std::vector<SeqId> seqs_;
  std::vector<std::vector<int32_t>> texts_;
  Rng rng_{9};
};

#ifdef DSV4_SANITIZED
constexpr int kWorlds[] = {3};
#else
constexpr int kWorlds[] = {2, 3, 4, 5};
#endif

class RankDrafts : public testing::TestWithParam<Case> {
 protected:
  std::shared_ptr<const ModelSpec> spec_ = spec_of(GetParam());
  Trace run(int world) const {
    const Model model = ModelShard::of_ranks(spec_, world, GetParam().drafter);
    return Rounds(model, GetParam()).run();
  }
};

TEST_P(RankDrafts, AreThoseOfOneRank) {
  const Trace want = run(1);
  ASSERT_EQ(want.ids.size(), 7 * kSequences);
  size_t guesses = 0;
  for (const std::vector<int32_t>& ids : want.ids) guesses += ids.size();
  EXPECT_GT(guesses, want.ids.size());
  for (const int world : kWorlds) {
    SCOPED_TRACE(fmt::format("{} ranks", world));
    const Trace got = run(world);
    ASSERT_EQ(std::ssize(got.logits), world);
    for (size_t rank = 0; rank < got.logits.size(); ++rank) {
      EXPECT_TRUE(got.logits[rank] == got.logits[0]) << "logits of rank " << rank;
      EXPECT_TRUE(got.caches[rank] == got.caches[0]) << "caches of rank " << rank;
    }
    // The copies of heads may differ in their scales.
    if (GetParam().draft_head) continue;
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.chances, want.chances);
    EXPECT_TRUE(got.logits[0] == want.logits[0]);
    EXPECT_TRUE(got.caches[0] == want.caches[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RankDrafts,
                         testing::Values(Case{"demo", kMtp, Numerics::kOfficial},
                                         Case{"demo", kMtp, Numerics::kExact},
                                         Case{"demo", kMtp, Numerics::kOfficial, kWhole},
                                         Case{"demo", kMtp, Numerics::kOfficial, kSliced, true},
                                         Case{"flash", kMtp, Numerics::kOfficial},
                                         Case{"pro", kMtp, Numerics::kOfficial},
                                         Case{"pro", kMtp, Numerics::kExact, kWhole},
                                         Case{"flash", kDspark, Numerics::kOfficial},
                                         Case{"flash", kDspark, Numerics::kExact},
                                         Case{"flash", kDspark, Numerics::kOfficial, kWhole}),
                         case_name);

// A rank receives the values of others for drafts too, and the time of drafts is that of steps.
TEST(RankDraftsRun, AreCounted) {
  const Case of{"demo", kMtp, Numerics::kOfficial};
  const Model model = ModelShard::of_ranks(spec_of(of), 2, kMtp);
  Executor executor(model, {},
                    {.max_tokens = 100, .max_batch_tokens = 50, .max_drafts = 2, .drafter = kMtp});
  const SeqId seq = executor.cache().open();
  const std::vector<int32_t> ids = random_ids(20, 1536, 1);
  const Work work{seq, std::span(ids).first(19)};
  executor.run({&work, 1});
  ASSERT_TRUE(executor.cache().reserve(seq, 3));
  const std::vector<RankStats> before = executor.rank_stats();
  SampleLists lists(1536);
  lists.add({.temperature = 0}, 0);
  const Executor::DraftRow row{seq, ids[19], 2};
  EXPECT_EQ(executor.draft({&row, 1}, lists.rows())[0].ids.size(), 2u);
  const std::vector<RankStats> after = executor.rank_stats();
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(after[rank].steps, before[rank].steps);
    EXPECT_GT(after[rank].step_seconds, before[rank].step_seconds);
    // Half of two rows of the vocabulary, at least.
    EXPECT_GT(after[rank].received_bytes - before[rank].received_bytes, 2 * 1536 * 4 / 2);
  }
}

// Asks a drafter for guesses that computes no numbers, and goes on.
void run_without_numbers(const Model& model, bool check = false) {
  CheckNumbers numbers(model);
  Executor executor(model, {},
                    {.max_tokens = 100, .max_batch_tokens = 50, .max_drafts = 2, .drafter = kMtp});
  const SeqId seq = executor.cache().open();
  const std::vector<int32_t> ids = random_ids(30, model.config().vocab_size, 1);
  const auto feed = [&](size_t first) {
    const Work work{seq, std::span(ids).subspan(first, 10)};
    executor.run({&work, 1});
  };
  feed(0);
  EXPECT_TRUE(executor.cache().reserve(seq, 3));
  SampleLists lists(model.config().vocab_size);
  lists.add({.temperature = 0}, 0);
  const Executor::DraftRow row{seq, ids[10], 2};
  if (check) executor.observe(&numbers);
  const auto guesses = executor.draft({&row, 1}, lists.rows());
  EXPECT_TRUE(guesses[0].ids.empty());
  feed(10);
}

// One of the drafter's weights, which all ranks read, is not a number while it lives.
class Damage {
 public:
  explicit Damage(const Model& model)
      : value_(const_cast<uint16_t*>(model.weights().drafter->norm.as<uint16_t>())[3]),
        old_(std::exchange(value_, 0x7fc0)) {}
  ~Damage() { value_ = old_; }

 private:
  uint16_t& value_;
  const uint16_t old_;
};

TEST(RankDraftsRun, WithoutNumbersEndTogether) {
  const auto spec = spec_of({"pro", kMtp, Numerics::kOfficial});
  for (const int world : {1, 3}) {
    const Model model = ModelShard::of_ranks(spec, world, kMtp);
    const Damage damage(model);
    run_without_numbers(model);
  }
}

// The check sees the calls of rank 0 alone, so the others are at another exchange.
TEST(RankDraftsRun, WithoutNumbersOnOneRankEndTheGroup) {
  const Model model = ModelShard::of_ranks(spec_of({"pro", kMtp, Numerics::kOfficial}), 3, kMtp);
  const Damage damage(model);
  const auto begin = std::chrono::steady_clock::now();
  const std::string text =
      test::error_of(ErrorCode::kInvalidArgument, [&] { run_without_numbers(model, true); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << "no rank waits";
  EXPECT_NE(text.find("a number that is not finite"), std::string::npos) << text;
}

}  // namespace
}  // namespace dsv4
