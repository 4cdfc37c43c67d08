#include "dsv4/engine/scheduler.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

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
    if (!plan_.chunks.empty() && limits_.max_prompt_tokens > 0)
      budget_ = std::min(budget_, limits_.max_prompt_tokens);
    prefill();
    while (plan_.chunks.empty() && plan_.num_running > 1) {
      preempt_last();
      prefill();
    }
    // A request is not admitted in the step that preempts it: its old pages go back only after it.
    if (plan_.num_running >= state_.num_running) admit();
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
    return table_pages(group, request(i).cached + count) - table_pages(group, request(i).cached);
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
    return r.cached + most == r.tokens || aligned < 1 ? most : aligned;
  }

  void grant(size_t i, int64_t count) {
    for (size_t g = 0; g < num_groups(); ++g) free_[g] -= missing(g, i, count);
    budget_ -= count;
    granted_[i] = count;
    plan_.chunks.push_back({i, count});
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
      while (tokens_that_fit(i) < 1 && plan_.num_running > std::max<size_t>(i, 1)) preempt_last();
      if (i < plan_.num_running && tokens_that_fit(i) >= 1) grant(i, 1);
    }
  }

  void prefill() {
    for (size_t i = 0; i < plan_.num_running; ++i) {
      if (request(i).decoding) continue;
      const int64_t count = chunk(i);
      if (count > 0) grant(i, count);
    }
  }

  // Pages that a request is expected to hold: all its tokens and a piece of its answer.
  int64_t expected(size_t g, size_t i) const {
    const int64_t ahead = std::min(limits_.lookahead, request(i).answer_left);
    return peak_pages(state_.groups[g], request(i).tokens + ahead);
  }

  bool has_room(size_t newcomer) const {
    for (size_t g = 0; g < num_groups(); ++g) {
      int64_t room = free_[g];
      for (size_t i = 0; i < plan_.num_running; ++i) {
        const int64_t held =
            held_pages(state_.groups[g], request(i).cached) + missing(g, i, granted_[i]);
        room -= std::max<int64_t>(0, expected(g, i) - held);
      }
      if (expected(g, newcomer) > room) return false;
    }
    return true;
  }

  void admit() {
    const size_t slots = static_cast<size_t>(limits_.max_sequences);
    while (plan_.num_running < std::min(slots, state_.requests.size()) && budget_ > 0) {
      const size_t i = plan_.num_running;
      if (i > 0 && !has_room(i)) return;
      take_prefix(i);
      const int64_t count = chunk(i);
      if (count < 1) return;
      ++plan_.num_running;
      grant(i, count);
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
