// Requests over the cache of a small model without its weights: no step is computed, so that what
// is shown here is where checkpoints are made, what stays stored, and what a request begins with.

#include "dsv4/engine/request_prefixes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/request_state.h"
#include "tests/harness/tiny_model.h"

namespace dsv4 {
namespace {

constexpr int64_t kStep = 128;  // checkpoints are at its multiples

class NoModel : public Runner {
 public:
  Memory& memory() override { return host_memory(); }
  Memory& staging() override { return host_memory(); }
  const Scratch& scratch() const override { return scratch_; }
  void forward(const ForwardBatch&, std::span<const LayerCache>, const TensorView&,
               const DrafterStreams&) override {}
  Drafted draft(const DraftChain&) override { return {}; }
  std::vector<Sampled> sample(const ConstTensorView&, const SampleRows&) override { return {}; }
  void copy(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) std::copy_n(piece.from, piece.bytes, piece.to);
  }
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override {
    struct Done : Transfer {
      bool done() override { return true; }
      void wait() override {}
    };
    copy(pieces);
    return std::make_unique<Done>();
  }
  void observe(Observer*) override {}

 private:
  Scratch scratch_;
};

std::vector<int32_t> text(int64_t n, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(40)));
  return ids;
}

std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class RequestPrefixesTest : public testing::Test {
 protected:
  ~RequestPrefixesTest() override {
    tables().check_invariants();
    stored_.check_invariants();
  }

  PageTables& tables() { return cache_.tables(); }

  static RequestState request(std::vector<int32_t> tokens) {
    RequestState request;
    request.tokens = std::move(tokens);
    return request;
  }

  // A step over the next `count` tokens, as Executor::start() commits it. Returns where the
  // sequence had a checkpoint made; 0: nowhere.
  int64_t step(RequestState& request, int64_t count) {
    const int64_t after = prefixes_.checkpoint_after(request, count),
                  place = after == 0 ? 0 : request.cached + after;
    prefixes_.reserve(request, count);
    tables().commit(request.seq, after);
    if (after > 0) prefixes_.store(request, place);
    tables().commit(request.seq, count - after);
    request.cached += count;
    prefixes_.after_step(/*waited=*/true);
    return place;
  }

  // The places of the checkpoints of its prompt, in chunks that end where plan() says.
  std::vector<int64_t> run_prompt(RequestState& request) {
    std::vector<int64_t> places;
    prefixes_.plan(request);
    prefixes_.begin(request);
    while (request.cached < request.length()) {
      const int64_t stop = prefixes_.plan(request).stop_at;
      const int64_t place = step(request, (stop == 0 ? request.length() : stop) - request.cached);
      if (place > 0) places.push_back(place);
    }
    return places;
  }

  void answer(RequestState& request, int64_t count) {
    for (const int32_t id : text(count, 99)) {
      request.tokens.push_back(id);
      ++request.generated;
      step(request, 1);
    }
  }

  // With how many tokens a request of this text would begin.
  int64_t begins_with(const std::vector<int32_t>& tokens) {
    RequestState other = request(tokens);
    return prefixes_.plan(other).cached;
  }

  NoModel runner_;
  ModelCache cache_{test::tiny_config(),
                    Numerics::kOfficial,
                    {.max_tokens = 4096,
                     .max_sequences = 2,
                     .max_batch_tokens = 2048,
                     .max_rollback = 7,
                     .checkpoints = 8},
                    host_memory()};
  PrefixCache stored_{cache_, runner_};
  RequestPrefixes prefixes_{tables(), &stored_, {.checkpoint_interval = 4 * kStep}};
};

using Places = std::vector<int64_t>;

TEST_F(RequestPrefixesTest, CheckpointsAreAtIntervalsForksAndTheEnd) {
  RequestState one = request(text(1500, 1));
  EXPECT_EQ(run_prompt(one), (Places{4 * kStep, 8 * kStep, 11 * kStep}));
  RequestState forked = request(text(1500, 2));
  forked.params.forks = {700, 5, 5000};  // 700 is after 5 steps; the others are in no text
  EXPECT_EQ(run_prompt(forked), (Places{4 * kStep, 5 * kStep, 9 * kStep, 11 * kStep}));
}

// The last token is computed in any case, so a checkpoint of all tokens would spare nothing.
TEST_F(RequestPrefixesTest, NoCheckpointHoldsTheWholePrompt) {
  RequestState even = request(text(2 * kStep, 3)), odd = request(text(2 * kStep + 1, 3));
  EXPECT_EQ(run_prompt(even), Places{kStep});
  EXPECT_EQ(run_prompt(odd), Places{2 * kStep});
  EXPECT_EQ(begins_with(odd.tokens), 2 * kStep);
  EXPECT_EQ(begins_with(even.tokens), kStep);
}

// The first text has no checkpoint where they part, since its only one lies behind.
TEST_F(RequestPrefixesTest, TextsThatPartGetACheckpointThere) {
  const std::vector<int32_t> shared = text(300, 6);
  RequestState first = request(join(shared, text(150, 7)));
  EXPECT_EQ(run_prompt(first), Places{3 * kStep});
  prefixes_.end(first);
  RequestState other = request(join(shared, text(700, 8)));
  EXPECT_EQ(run_prompt(other), (Places{2 * kStep, 6 * kStep, 7 * kStep}));
  EXPECT_EQ(begins_with(join(shared, text(50, 9))), 2 * kStep);
}

TEST_F(RequestPrefixesTest, AnAnswerKeepsItsNewestCheckpoint) {
  RequestState one = request(text(200, 9));
  EXPECT_EQ(run_prompt(one), Places{kStep});
  answer(one, 400);
  EXPECT_EQ(stored_.size(), 2) << "of the prompt and of the answer";
  EXPECT_EQ(begins_with(one.tokens), 4 * kStep);
  const std::vector<int32_t> tokens = one.tokens;
  EXPECT_EQ(begins_with({tokens.begin(), tokens.begin() + 3 * kStep}), kStep);
}

// It computes again what came after its last checkpoint, and finishes like any other.
TEST_F(RequestPrefixesTest, APreemptedRequestResumesAtItsCheckpoint) {
  RequestState one = request(text(200, 10));
  run_prompt(one);
  answer(one, 100);
  EXPECT_TRUE(one.runs());
  prefixes_.end(one);
  EXPECT_FALSE(one.runs());
  EXPECT_EQ(one.cached, 0);
  EXPECT_EQ(tables().num_open(), 0);
  EXPECT_EQ(prefixes_.plan(one).cached, 2 * kStep);
  EXPECT_EQ(prefixes_.begin(one).tokens, 2 * kStep);
  EXPECT_EQ(tables().length(one.seq), one.cached);
  answer(one, 1);
  prefixes_.end(one);
}

// Their logits are wanted.
TEST_F(RequestPrefixesTest, AScoredPromptBeginsWithNothing) {
  RequestState one = request(text(300, 11));
  run_prompt(one);
  RequestState scored = request(one.tokens);
  scored.params.score_prompt = true;
  EXPECT_EQ(prefixes_.plan(scored).cached, 0);
  EXPECT_EQ(prefixes_.begin(scored).tokens, 0);
}

TEST_F(RequestPrefixesTest, WithoutAPrefixCacheNothingIsStored) {
  RequestPrefixes none(tables(), nullptr, {});
  RequestState one = request(text(600, 12));
  EXPECT_EQ(none.plan(one).stop_at, 0);
  EXPECT_EQ(none.begin(one).tokens, 0);
  EXPECT_EQ(none.checkpoint_after(one, 600), 0);
  none.reserve(one, 600);
  tables().commit(one.seq, 600);
  none.after_step(true);
  none.finish_saves(true);
  none.end(one);
  EXPECT_EQ(tables().num_open(), 0);
}

// A step computes the newest token and 7 drafts, of which some are accepted: the sequence grows by
// those alone, and a checkpoint lies between two commits.
TEST_F(RequestPrefixesTest, AStepWithDraftsStoresAcceptedTokens) {
  constexpr int64_t kDrafts = 7;
  for (int64_t accepted = 0; accepted <= kDrafts; ++accepted) {
    for (int64_t before = 0; before <= accepted; ++before) {  // the checkpoint, among the accepted
      const auto seed = static_cast<uint64_t>(100 + 10 * accepted + before);
      RequestState one = request(text(2 * kStep - before, seed));
      one.generated = 1;  // the last token, which is the input of the step
      prefixes_.begin(one);
      prefixes_.reserve(one, one.length() - 1);
      tables().commit(one.seq, one.length() - 1);
      one.cached = one.length() - 1;

      prefixes_.reserve(one, 1 + kDrafts);
      const int64_t count = 1 + accepted, after = prefixes_.checkpoint_after(one, count);
      ASSERT_EQ(one.cached + after, 2 * kStep) << accepted << " accepted, " << before << " before";
      one.tokens = join(one.tokens, text(count, seed + 1));
      one.generated += count;
      tables().commit(one.seq, after);
      prefixes_.store(one, 2 * kStep);
      tables().commit(one.seq, count - after);
      tables().truncate(one.seq, one.cached += count);  // room of rejected drafts goes back
      prefixes_.after_step(true);
      EXPECT_EQ(one.cached + 1, one.length());
      tables().check_invariants();
      EXPECT_EQ(begins_with(join(one.tokens, {1})), 2 * kStep);
      prefixes_.end(one);
    }
  }
}

class RequestUnits : public RequestPrefixesTest {
 protected:
  RequestUnits() { stored_.open_tiers({.ram_bytes = 64 << 20}, digest_of("a model")); }

  void look_up_and_begin(RequestState& request) {
    prefixes_.look_up(request, 0);
    EXPECT_FALSE(prefixes_.loading(request)) << "host memory is at hand";
    EXPECT_EQ(prefixes_.plan(request).cached, prefixes_.stored_tokens(request));
    attached_ = prefixes_.begin(request);
    EXPECT_EQ(attached_.tokens, tables().length(request.seq));
  }

  PrefixCache::Attached attached_;
};

TEST_F(RequestUnits, WhatThePagesLoseComesBack) {
  RequestState one = request(text(200, 20));
  run_prompt(one);
  answer(one, 200);
  prefixes_.end(one);
  prefixes_.flush();
  prefixes_.drop(PrefixTier::kCache);
  EXPECT_EQ(begins_with(one.tokens), 0);
  RequestState turn = request(join(one.tokens, text(50, 21)));
  look_up_and_begin(turn);
  EXPECT_EQ(attached_.tokens, 3 * kStep);
  EXPECT_EQ(attached_.ram, 3 * kStep);
  prefixes_.after_step(true);
  prefixes_.end(turn);
}

// A preempted answer is no longer in the pages when it runs again, as often as that happens.
TEST_F(RequestUnits, APreemptedRequestResumesFromItsUnit) {
  RequestState one = request(text(200, 22));
  run_prompt(one);
  answer(one, 100);
  for (int i = 0; i < 5; ++i) {
    prefixes_.end(one);
    prefixes_.flush();
    prefixes_.drop(PrefixTier::kCache);
    look_up_and_begin(one);
    EXPECT_EQ(one.cached, 2 * kStep);
    EXPECT_EQ(attached_.ram, 2 * kStep);
  }
  prefixes_.end(one);
}

// The device may still read a unit's memory when the request has ended: it stays until a step has.
TEST_F(RequestUnits, MemoryOfUnitsStaysUntilTheStepHasEnded) {
  RequestState one = request(text(300, 23));
  run_prompt(one);
  prefixes_.end(one);
  prefixes_.flush();
  prefixes_.drop(PrefixTier::kCache);
  look_up_and_begin(one);
  prefixes_.end(one);
  UnitStore& units = *stored_.units();
  prefixes_.after_step(/*waited=*/false);
  units.drop_ram();
  EXPECT_GT(units.stats().ram_units, 0);
  prefixes_.after_step(/*waited=*/true);
  units.drop_ram();
  EXPECT_EQ(units.stats().ram_units, 0);
}

TEST_F(RequestUnits, ForgottenUnitsAreNotUsed) {
  RequestState one = request(text(300, 24));
  run_prompt(one);
  prefixes_.end(one);
  prefixes_.flush();
  RequestState other = request(join(one.tokens, text(9, 25)));
  prefixes_.drop(PrefixTier::kCache);
  prefixes_.look_up(other, 0);
  EXPECT_EQ(prefixes_.stored_tokens(other), 2 * kStep);
  prefixes_.forget_units(other);
  prefixes_.drop(PrefixTier::kRam);
  EXPECT_EQ(prefixes_.stored_tokens(other), 0);
  prefixes_.look_up(other, 0);
  EXPECT_EQ(prefixes_.plan(other).cached, 0);
}

}  // namespace
}  // namespace dsv4
