#include "dsv4/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

// Requests that an engine would serve, over real page tables and without a network.
class Simulation {
 public:
  struct Request {
    int64_t prompt = 1, answer = 1;
    int64_t generated = 0, cached = 0;
    SeqId seq{};
    size_t number = 0;
  };

  // Keeps up to `max_prefixes` prefixes of finished chunks. Every text is the same in this
  // simulation, so a request begins with the longest one that is shorter than its prompt.
  Simulation(std::vector<CacheGroup> groups, const SchedulerLimits& limits, size_t max_prefixes = 0)
      : limits_(limits), tables_(groups, limits.max_sequences), max_prefixes_(max_prefixes) {}

  void submit(int64_t prompt, int64_t answer) {
    requests_.push_back({.prompt = prompt, .answer = answer, .number = num_submitted_++});
  }

  Schedule step() {
    const Schedule plan = schedule();
    const Schedule again = schedule();
    EXPECT_EQ(plan.num_running, again.num_running) << "the same state gives the same step";
    check(plan);
    for (size_t i = num_running_; i < plan.num_running; ++i) {
      requests_[i].seq = tables_.open();
      if (const PagePrefix* prefix = prefix_of(requests_[i])) {
        tables_.attach(requests_[i].seq, *prefix);
        requests_[i].cached = prefix->tokens;
        ++attached_;
      }
    }
    for (size_t i = plan.num_running; i < num_running_; ++i) {
      tables_.close(requests_[i].seq);
      requests_[i].cached = 0;
      ++preemptions_;
    }
    num_running_ = plan.num_running;
    for (const Schedule::Chunk& chunk : plan.chunks) {
      bool reserved = tables_.reserve(requests_[chunk.request].seq, chunk.count);
      for (; !reserved && !prefixes_.empty(); prefixes_.pop_front()) {
        tables_.release(prefixes_.front());
        reserved = tables_.reserve(requests_[chunk.request].seq, chunk.count);
      }
      EXPECT_TRUE(reserved) << "over-committed";
    }
    for (const Schedule::Chunk& chunk : plan.chunks) {
      Request& request = requests_[chunk.request];
      tables_.commit(request.seq, chunk.count);
      request.cached += chunk.count;
      keep_prefix(request);
      if (request.cached == request.prompt + request.generated) ++request.generated;
    }
    tables_.check_invariants();
    finish();
    ++steps_;
    return plan;
  }

  bool empty() const { return requests_.empty(); }
  size_t num_running() const { return num_running_; }
  int64_t preemptions() const { return preemptions_; }
  int64_t steps() const { return steps_; }
  int64_t attached() const { return attached_; }
  const std::vector<size_t>& finished() const { return finished_; }
  Request& request(size_t i) { return requests_[i]; }

 private:
  Schedule schedule() const {
    std::vector<ScheduledRequest> requests;
    for (const Request& r : requests_) {
      const PagePrefix* prefix = requests.size() < num_running_ ? nullptr : prefix_of(r);
      const int64_t cached = prefix == nullptr ? r.cached : prefix->tokens;
      requests.push_back(
          {.tokens = r.prompt + r.generated,
           .cached = cached,
           .answer_left = r.answer - r.generated,
           .decoding = decoding(r),
           .stop_at = max_prefixes_ == 0 ? 0 : (cached / kPageTokens + 1) * kPageTokens});
    }
    std::vector<int64_t> free_pages;
    for (size_t g = 0; g < tables_.groups().size(); ++g)
      free_pages.push_back(tables_.free_pages(static_cast<int>(g)) +
                           tables_.idle_pages(static_cast<int>(g)));
    std::vector<SeqId> running;
    for (size_t i = 0; i < num_running_; ++i) running.push_back(requests_[i].seq);
    const auto own_pages = [&](size_t i, size_t g) {
      return tables_.own_pages(running[i], static_cast<int>(g), std::span(running).first(i));
    };
    return dsv4::schedule({.requests = requests,
                           .num_running = num_running_,
                           .groups = tables_.groups(),
                           .free_pages = free_pages,
                           .own_pages = own_pages},
                          limits_);
  }

  static constexpr int64_t kPageTokens = 16;  // fill pages of every group of groups_for()

  const PagePrefix* prefix_of(const Request& r) const {
    const PagePrefix* best = nullptr;
    for (const PagePrefix& prefix : prefixes_) {
      const bool longer = best == nullptr || prefix.tokens > best->tokens;
      if (prefix.tokens < r.prompt && longer) best = &prefix;
    }
    return best;
  }
  void keep_prefix(const Request& r) {
    if (r.cached % kPageTokens != 0 || prefixes_.size() == max_prefixes_) return;
    prefixes_.push_back(tables_.hold(r.seq, r.cached));
  }

  static bool decoding(const Request& r) {
    return r.generated > 0 && r.cached + 1 == r.prompt + r.generated;
  }

  void check(const Schedule& plan) const {
    ASSERT_LE(plan.num_running, static_cast<size_t>(limits_.max_sequences));
    ASSERT_LE(plan.num_running, requests_.size());
    int64_t tokens = 0;
    bool chunks = false;
    std::set<size_t> seen;
    for (const Schedule::Chunk& chunk : plan.chunks) {
      ASSERT_LT(chunk.request, plan.num_running);
      ASSERT_TRUE(seen.insert(chunk.request).second);
      const Request& request = requests_[chunk.request];
      ASSERT_GE(chunk.count, 1);
      const bool waits = chunk.request >= num_running_;
      const PagePrefix* prefix = waits ? prefix_of(request) : nullptr;
      const int64_t cached = prefix == nullptr ? request.cached : prefix->tokens;
      ASSERT_LE(cached + chunk.count, request.prompt + request.generated);
      if (!decoding(request) && max_prefixes_ > 0) {
        EXPECT_LE(chunk.count, kPageTokens - cached % kPageTokens) << "across a stop";
      }
      EXPECT_FALSE(chunks && decoding(request)) << "decoding requests come first";
      chunks = chunks || !decoding(request);
      tokens += chunk.count;
    }
    EXPECT_LE(tokens, limits_.max_batch_tokens);
    EXPECT_GT(tokens, 0) << "a step without work";
    for (size_t i = 0; i < std::min(plan.num_running, num_running_); ++i) {
      if (!decoding(requests_[i])) continue;
      EXPECT_EQ(seen.count(i), 1u) << "a decoding request waits";
    }
  }

  void finish() {
    for (size_t i = 0; i < num_running_;) {
      if (requests_[i].generated < requests_[i].answer) {
        ++i;
        continue;
      }
      tables_.close(requests_[i].seq);
      finished_.push_back(requests_[i].number);
      requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
      --num_running_;
    }
  }

  SchedulerLimits limits_;
  PageTables tables_;
  std::vector<Request> requests_;  // in order of arrival
  size_t num_running_ = 0, num_submitted_ = 0;
  int64_t preemptions_ = 0, steps_ = 0, attached_ = 0;
  size_t max_prefixes_;
  std::deque<PagePrefix> prefixes_;  // oldest first
  std::vector<size_t> finished_;
};

// A window of 8 tokens, blocks of 4 and of 16. `shared`: tokens of all sequences together.
std::vector<CacheGroup> groups_for(int sequences, int64_t shared, int64_t batch_tokens,
                                   int64_t prefixes = 0) {
  return {{.tokens_per_entry = 1,
           .page_entries = 4,
           .num_pages = sequences * 4 + batch_tokens / 4 + 1 + 2 * prefixes,
           .keep_tokens = 8},
          {.tokens_per_entry = 4, .page_entries = 4, .num_pages = (shared / 4 + 3) / 4},
          {.tokens_per_entry = 16, .page_entries = 1, .num_pages = shared / 16}};
}

TEST(Scheduler, DecodesFirstThenPromptsInOrder) {
  Simulation simulation(groups_for(3, 3 * 128, 10), {.max_batch_tokens = 10, .max_sequences = 3});
  simulation.submit(4, 20);
  EXPECT_EQ(simulation.step().chunks.size(), 1u);
  simulation.submit(12, 5);
  simulation.submit(30, 5);
  Schedule plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].count, 1);
  EXPECT_EQ(plan.chunks[1].count, 9);
  plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[1].request, 1u);
  EXPECT_EQ(plan.chunks[1].count, 3);
  EXPECT_EQ(plan.chunks[2].count, 6);
}

TEST(Scheduler, PromptsAreShortBesideRequestsThatDecode) {
  Simulation simulation(groups_for(3, 3 * 128, 40),
                        {.max_batch_tokens = 40, .max_prompt_tokens = 6, .max_sequences = 3});
  simulation.submit(30, 20);
  EXPECT_EQ(simulation.step().chunks[0].count, 30) << "nothing decodes";
  simulation.submit(10, 5);
  simulation.submit(10, 5);
  Schedule plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].count, 1);
  EXPECT_EQ(plan.chunks[1].count, 6);
  plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[1].count, 4);
  EXPECT_EQ(plan.chunks[2].count, 2);
}

// Half of what is left at most, in order, and nothing where nothing is left.
TEST(Scheduler, DraftsLeaveHalfOfTheBudgetToPrompts) {
  const std::vector<CacheGroup> groups = groups_for(4, 4 * 512, 128);
  const std::vector<int64_t> free_pages = {1000, 1000, 1000};
  const ScheduledRequest decodes = {
      .tokens = 20, .cached = 19, .answer_left = 50, .decoding = true, .drafts = 7};
  const std::vector<ScheduledRequest> requests = {
      decodes, decodes, {.tokens = 100, .answer_left = 9}};
  const auto plan_of = [&](int64_t budget) {
    return schedule({.requests = requests,
                     .num_running = 3,
                     .groups = groups,
                     .free_pages = std::span(free_pages).first(groups.size())},
                    {.max_batch_tokens = budget, .max_sequences = 4});
  };
  const auto granted = [&](int64_t budget) {
    std::vector<int64_t> list;
    for (const Schedule::Chunk& chunk : plan_of(budget).chunks) {
      list.push_back(chunk.count);
      list.push_back(chunk.drafts);
    }
    return list;
  };
  EXPECT_EQ(granted(128), (std::vector<int64_t>{1, 7, 1, 7, 100, 0}));
  EXPECT_EQ(granted(22), (std::vector<int64_t>{1, 7, 1, 3, 10, 0}));
  EXPECT_EQ(granted(2), (std::vector<int64_t>{1, 0, 1, 0}));
}

TEST(Scheduler, ShortPromptsPassALongOneWithAnEighthOfTheBudget) {
  Simulation simulation(groups_for(4, 4 * 512, 80),
                        {.max_batch_tokens = 80, .max_sequences = 4, .long_prompt = 20});
  simulation.submit(400, 5);
  EXPECT_EQ(simulation.step().chunks[0].count, 80) << "nothing passes it";
  simulation.submit(15, 5);
  simulation.submit(4, 5);
  simulation.submit(60, 5);
  Schedule plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].request, 1u);
  EXPECT_EQ(plan.chunks[0].count, 10);
  EXPECT_EQ(plan.chunks[1].request, 0u);
  EXPECT_EQ(plan.chunks[1].count, 70);
  plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[0].count, 5);
  EXPECT_EQ(plan.chunks[1].count, 4);
  EXPECT_EQ(plan.chunks[2].request, 0u);
  EXPECT_EQ(plan.chunks[2].count, 71) << "what the short prompts leave";
  EXPECT_EQ(simulation.step().num_running, 3u) << "a long prompt passes none";
}

TEST(Scheduler, AShortPromptBeforeALongOneGetsAllThatItCan) {
  Simulation simulation(groups_for(2, 2 * 256, 40),
                        {.max_batch_tokens = 40, .max_sequences = 2, .long_prompt = 50});
  simulation.submit(50, 5);
  simulation.submit(200, 5);
  const Schedule plan = simulation.step();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].count, 40);
  const Schedule next = simulation.step();
  ASSERT_EQ(next.chunks.size(), 2u);
  EXPECT_EQ(next.chunks[0].count, 10);
  EXPECT_EQ(next.chunks[1].count, 30);
}

TEST(Scheduler, ChunksEndAtAStepUnlessThatLeavesOutMuch) {
  for (const auto& [budget, chunk] : {std::pair(65, 64), std::pair(35, 35)}) {
    Simulation simulation(groups_for(1, 256, 80),
                          {.max_batch_tokens = budget, .max_sequences = 1, .chunk_step = 16});
    simulation.submit(100, 5);
    EXPECT_EQ(simulation.step().chunks[0].count, chunk);
  }
}

TEST(Scheduler, AdmitsInOrderOfArrivalWhenPagesSuffice) {
  Simulation simulation(groups_for(4, 128, 64), {.max_batch_tokens = 64, .max_sequences = 4});
  simulation.submit(40, 8);
  simulation.submit(90, 8);  // does not fit beside the first
  simulation.submit(4, 4);   // would, but came later
  EXPECT_EQ(simulation.step().num_running, 1u);
  while (simulation.num_running() == 1 && !simulation.empty()) simulation.step();
  EXPECT_EQ(simulation.finished(), (std::vector<size_t>{0}));
}

// The second would fit now, but the first is expected to grow into the pages that are free.
TEST(Scheduler, KeepsPagesForWhatRuns) {
  Simulation simulation(groups_for(2, 128, 64),
                        {.max_batch_tokens = 64, .max_sequences = 2, .lookahead = 64});
  simulation.submit(40, 60);
  simulation.step();
  simulation.submit(60, 4);
  EXPECT_EQ(simulation.step().num_running, 1u);
  while (simulation.finished().empty()) simulation.step();
  EXPECT_EQ(simulation.preemptions(), 0);
  EXPECT_EQ(simulation.step().num_running, 1u);
}

TEST(Scheduler, PreemptsTheNewestWhenPagesRunOut) {
  Simulation simulation(groups_for(3, 128, 64),
                        {.max_batch_tokens = 64, .max_sequences = 3, .lookahead = 4});
  for (int i = 0; i < 3; ++i) simulation.submit(20, 90);
  EXPECT_EQ(simulation.step().num_running, 3u);
  while (simulation.preemptions() == 0) simulation.step();
  EXPECT_EQ(simulation.num_running(), 2u);
  EXPECT_EQ(simulation.request(2).number, 2u);
  EXPECT_EQ(simulation.request(2).cached, 0);
  const int64_t generated = simulation.request(2).generated;
  EXPECT_GT(generated, 0) << "keeps its answer";
  while (!simulation.empty()) simulation.step();
  EXPECT_EQ(simulation.finished(), (std::vector<size_t>{0, 1, 2}));
}

TEST(Scheduler, SaysWhenOneSequenceAloneDoesNotFit) {
  Simulation simulation(groups_for(1, 64, 16), {.max_batch_tokens = 16, .max_sequences = 1});
  simulation.submit(60, 20);
  EXPECT_THROW(
      {
        while (!simulation.empty()) simulation.step();
      },
      Error);
}

// Random requests arrive while others run.
struct Trace {
  int64_t preemptions = 0, attached = 0;
};
Trace run_trace(uint64_t seed, int sequences, int64_t shared, int64_t longest, int64_t lookahead,
                size_t prefixes = 0) {
  Rng rng(seed);
  const int64_t batch = sequences + rng.below(40);
  Simulation simulation(groups_for(sequences, shared, batch, static_cast<int64_t>(prefixes)),
                        {.max_batch_tokens = batch,
                         .max_sequences = sequences,
                         .lookahead = lookahead,
                         .long_prompt = 1 + rng.below(longest),
                         .chunk_step = 1 + rng.below(16)},
                        prefixes);
  int64_t left = 40, work = 0;
  size_t submitted = 0;
  while (left > 0 || !simulation.empty()) {
    if (left > 0 && (simulation.empty() || rng.below(4) == 0)) {
      const int64_t prompt = 1 + rng.below(longest - 1), answer = 1 + rng.below(longest - prompt);
      simulation.submit(prompt, answer);
      work += prompt + answer;
      --left, ++submitted;
    }
    simulation.step();
    // Even one request after the other, each computed again for every preemption, is done by then.
    EXPECT_LE(simulation.steps(), work * (1 + simulation.preemptions())) << "no progress";
    if (testing::Test::HasFailure()) return {};
  }
  EXPECT_EQ(simulation.finished().size(), submitted);
  return {simulation.preemptions(), simulation.attached()};
}

TEST(Scheduler, RandomTracesFinishWithFewPages) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const int64_t longest = 128;
    preemptions +=
        run_trace(seed, 1 + static_cast<int>(seed % 6),
                  longest + 16 * static_cast<int64_t>(seed % 9), longest, seed % 3 == 0 ? 0 : 64)
            .preemptions;
  }
  EXPECT_GT(preemptions, 20) << "the pages never ran out: the test is too easy";
}

// Pages of stored prefixes are free pages for the scheduler, and requests that begin with them take
// pages too: no step may need a page that is not there.
TEST(Scheduler, RandomTracesFinishWithStoredPrefixes) {
  Trace all;
  for (uint64_t seed = 200; seed < 260; ++seed) {
    SCOPED_TRACE(seed);
    const int64_t longest = 128;
    const Trace trace = run_trace(seed, 1 + static_cast<int>(seed % 6),
                                  longest + 16 * static_cast<int64_t>(seed % 9), longest,
                                  seed % 3 == 0 ? 0 : 64, 5);
    all.preemptions += trace.preemptions, all.attached += trace.attached;
  }
  EXPECT_GT(all.preemptions, 20) << "the pages never ran out: the test is too easy";
  EXPECT_GT(all.attached, 500);
}

// Many conversations begin with one long system prompt. What preempting one of them gives back is
// its own pages, not those of the system prompt.
TEST(Scheduler, ManySequencesThatShareTheirPrompt) {
  int64_t preemptions = 0, attached = 0;
  for (uint64_t seed = 300; seed < 340; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    constexpr int kSequences = 16;
    const int64_t longest = 256;
    Simulation simulation(
        groups_for(kSequences, 2 * longest, 64, 8),
        {.max_batch_tokens = 64, .max_sequences = kSequences, .lookahead = 8 * (rng.below(3))}, 8);
    for (int i = 0; i < 40; ++i) simulation.submit(130 + rng.below(16), 1 + rng.below(100));
    while (!simulation.empty()) {
      simulation.step();
      if (HasFailure()) return;
    }
    preemptions += simulation.preemptions(), attached += simulation.attached();
  }
  EXPECT_GT(preemptions, 100);
  EXPECT_GT(attached, 1000);
}

// Pools as EngineOptions::cache_tokens = 0 makes them.
TEST(Scheduler, NothingIsPreemptedWhereEverySlotHasItsPages) {
  for (uint64_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE(seed);
    const int sequences = 1 + static_cast<int>(seed % 5);
    EXPECT_EQ(run_trace(seed, sequences, sequences * 128, 128, 256).preemptions, 0);
    EXPECT_EQ(run_trace(seed, sequences, sequences * 128, 128, 256, 5).preemptions, 0);
  }
}

// ... and no request waits for anything but a slot.
TEST(Scheduler, SlotsAloneDecideWhereEverySlotHasItsPages) {
  Rng rng(4);
  Simulation simulation(groups_for(4, 4 * 128, 600), {.max_batch_tokens = 600, .max_sequences = 4});
  for (int i = 0; i < 40; ++i) {
    const int64_t prompt = 1 + rng.below(127);
    simulation.submit(prompt, 1 + rng.below(128 - prompt));
  }
  for (size_t left = 40; !simulation.empty(); left = 40 - simulation.finished().size())
    EXPECT_EQ(simulation.step().num_running, std::min<size_t>(4, left));
}

}  // namespace
}  // namespace dsv4
