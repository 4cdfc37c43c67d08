#include "dsv4/engine/scheduler.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kShortShare = 8;    // short prompts pass a long one with budget / kShortShare
constexpr int64_t kMostLeftOut = 32;  // of a chunk: at most 1 / kMostLeftOut, to end at chunk_step

// Pages that a sequence of `tokens` tokens holds at most between two steps.
int64_t peak_pages(const CacheGroup& group, int64_t tokens) {
  const int64_t whole = table_pages(group, tokens);
  if (group.keep_tokens == 0) return whole;
  const int64_t entries = ceil_div(group.keep_tokens - 1, group.tokens_per_entry);
  return std::min(whole, ceil_div(entries, group.page_entries) + 2);
}

class Planner {
 public:
  Planner(const SchedulerState& state, const SchedulerLimits& limits)
      : state_(state),
        limits_(limits),
        free_(state.free_pages.begin(), state.free_pages.end()),
        budget_(limits.max_batch_tokens),
        granted_(state.requests.size(), 0) {
    plan_.num_running = state.num_running;
  }

  Schedule run() {
    decode();
    add_drafts();
    if (!plan_.chunks.empty() && limits_.max_prompt_tokens > 0)
      budget_ = std::min(budget_, limits_.max_prompt_tokens);
    prefill();
    while (plan_.chunks.empty() && plan_.num_running > 1) {
      preempt_last();
      prefill();
    }
    admit();
    if (plan_.chunks.empty() && !state_.requests.empty())
      fail(ErrorCode::kResource, "a sequence of {} tokens alone does not fit the cache",
           request(0).tokens);
    return plan_;
  }

 private:
  const ScheduledRequest& request(size_t i) const { return state_.requests[i]; }
  size_t num_groups() const { return state_.groups.size(); }

  // Pages that the next `count` tokens of a request take.
  int64_t missing(size_t g, size_t i, int64_t count) const {
    const CacheGroup& group = state_.groups[g];
    const int64_t cached = request(i).cached;
    if (count == 1) {  // the case of most calls, without most of the divisions
      const int64_t entries = (cached + 1) / group.tokens_per_entry;
      if (entries * group.tokens_per_entry != cached + 1) return 0;  // no entry is closed
      return (entries - 1) % group.page_entries == 0 ? 1 : 0;
    }
    return table_pages(group, cached + count) - table_pages(group, cached);
  }

  bool next_token_fits(size_t i) const {
    for (size_t g = 0; g < num_groups(); ++g)
      if (missing(g, i, 1) > free_[g]) return false;
    return true;
  }

  // The longest chunk for which there are pages.
  int64_t tokens_that_fit(size_t i) const {
    int64_t most = request(i).tokens - request(i).cached;
    for (size_t g = 0; g < num_groups(); ++g) {
      const CacheGroup& group = state_.groups[g];
      const int64_t pages = table_pages(group, request(i).cached) + free_[g];
      const int64_t end = (pages * group.page_entries + 1) * group.tokens_per_entry - 1;
      most = std::min(most, end - request(i).cached);
    }
    return most;
  }

  // Tokens of the next chunk of a request that computes its prompt; below 1: none now.
  int64_t chunk(size_t i) const {
    const ScheduledRequest& r = request(i);
    const int64_t wanted = r.stop_at > r.cached ? r.stop_at - r.cached : budget_;
    const int64_t most = std::min({budget_, wanted, tokens_that_fit(i)});
    const int64_t aligned = (r.cached + most) / limits_.chunk_step * limits_.chunk_step - r.cached;
    const bool ends = r.cached + most == r.tokens, wastes = most - aligned > most / kMostLeftOut;
    return ends || wastes ? most : aligned;
  }

  void grant(size_t i, int64_t count) {
    for (size_t g = 0; g < num_groups(); ++g) free_[g] -= missing(g, i, count);
    budget_ -= count;
    granted_[i] = count;
    plan_.chunks.push_back({.request = i, .count = count});
  }

  void preempt_last() {
    const size_t last = --plan_.num_running;
    for (size_t g = 0; g < num_groups(); ++g) {
      free_[g] += state_.own_pages ? state_.own_pages(last, g)
                                   : held_pages(state_.groups[g], request(last).cached);
    }
  }

  void decode() {
    for (size_t i = 0; i < plan_.num_running; ++i) {
      if (!request(i).decoding) continue;
      // Requests that have their token stand before i, so no preempted request has a chunk.
      while (!next_token_fits(i) && plan_.num_running > std::max<size_t>(i, 1)) preempt_last();
      if (i < plan_.num_running && next_token_fits(i)) grant(i, 1);
    }
  }

  void add_drafts() {
    int64_t left = budget_ / 2;
    for (Schedule::Chunk& chunk : plan_.chunks) {
      chunk.drafts = std::min(request(chunk.request).drafts, left);
      left -= chunk.drafts;
      budget_ -= chunk.drafts;
    }
  }

  bool is_long(size_t i) const {
    return request(i).tokens - request(i).cached > limits_.long_prompt;
  }

  void prefill() {
    bool passed = false;
    for (size_t i = 0; i < plan_.num_running; ++i) {
      if (!passed && is_long(i)) {
        passed = true;
        pass_long_prompt(i);
      }
      prefill(i);
    }
  }

  void prefill(size_t i) {
    if (request(i).decoding || granted_[i] > 0) return;
    const int64_t count = chunk(i);
    if (count > 0) grant(i, count);
  }

  // Short prompts after this one get a share of the budget before it, so that a prompt of 100,000
  // tokens does not hold up every request that comes after it.
  void pass_long_prompt(size_t long_one) {
    const int64_t kept = budget_ - budget_ / kShortShare;
    budget_ -= kept;
    for (size_t i = long_one + 1; i < plan_.num_running; ++i)
      if (!is_long(i)) prefill(i);
    admit(/*only_short=*/true);
    budget_ += kept;
  }

  // Pages that a request is expected to hold: all its tokens and a piece of its answer.
  int64_t expected(size_t g, size_t i) const {
    const int64_t ahead = std::min(limits_.lookahead, request(i).answer_left);
    return peak_pages(state_.groups[g], request(i).tokens + ahead);
  }

  // [group] pages that no running request is expected to need.
  std::vector<int64_t> spare_pages() const {
    std::vector<int64_t> spare = free_;
    for (size_t g = 0; g < num_groups(); ++g) {
      for (size_t i = 0; i < plan_.num_running; ++i)
        spare[g] -= std::max<int64_t>(0, expected(g, i) - held_after(g, i));
    }
    return spare;
  }

  // Pages of a running request when the step has run.
  int64_t held_after(size_t g, size_t i) const {
    return held_pages(state_.groups[g], request(i).cached) + missing(g, i, granted_[i]);
  }

  // Requests that wait, in order, up to the first that must wait on.
  void admit(bool only_short = false) {
    // A request is not admitted in the step that preempts it: its old pages go back only after it.
    if (plan_.num_running < state_.num_running) return;
    const size_t slots =
        std::min(static_cast<size_t>(limits_.max_sequences), state_.requests.size());
    if (plan_.num_running >= slots || budget_ < 1) return;
    std::vector<int64_t> spare = spare_pages();
    while (plan_.num_running < slots && budget_ > 0) {
      const size_t i = plan_.num_running;
      if (only_short && is_long(i)) return;
      for (size_t g = 0; g < num_groups(); ++g)
        if (i > 0 && expected(g, i) > spare[g]) return;
      take_prefix(i);
      const int64_t count = chunk(i);
      if (count < 1) return;
      ++plan_.num_running;
      grant(i, count);
      for (size_t g = 0; g < num_groups(); ++g)
        spare[g] -= std::max(expected(g, i), held_after(g, i));
    }
  }

  // The pages of a stored prefix are free no more once a request begins with it.
  void take_prefix(size_t i) {
    for (size_t g = 0; g < num_groups(); ++g)
      free_[g] -= held_pages(state_.groups[g], request(i).cached);
  }

  const SchedulerState& state_;
  const SchedulerLimits& limits_;
  std::vector<int64_t> free_;  // [group]
  int64_t budget_;
  std::vector<int64_t> granted_;  // [request] tokens of this step
  Schedule plan_;
};

}  // namespace

Schedule schedule(const SchedulerState& state, const SchedulerLimits& limits) {
  return Planner(state, limits).run();
}

}  // namespace dsv4
