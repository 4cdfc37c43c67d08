#include "dsv4/engine/captured_steps.h"

#include <algorithm>
#include <bit>

#include "dsv4/base/bits.h"

namespace dsv4 {
namespace {

constexpr int64_t kLeastVisible = 64;  // of HCA: 8192 tokens at ratio 128

int64_t pow2_at_least(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)));
}

}  // namespace

int64_t captured_size(int64_t n) {
  const int64_t power = pow2_at_least(n);
  return power >= 4 && n <= power / 4 * 3 ? power / 4 * 3 : power;
}

// visible: entries that a query sees, of each group
StepExtents CapturedSteps::extents(int64_t runs, int64_t tokens,
                                   std::span<const int64_t> visible) const {
  StepExtents all{.tokens = tokens, .runs = runs, .logits_rows = tokens};
  for (size_t g = 0; g < groups_.size(); ++g) {
    const CacheGroupSpec& group = groups_[g];
    // A run of c tokens closes at most ceil(c / r) entries.
    const int64_t closed = std::min(runs * ceil_div(kMaxRunTokens, int64_t{group.ratio}),
                                    runs + (tokens - runs) / group.ratio);
    if (group.keep_tokens > 0) {
      all.groups.push_back(
          {.closed = closed, .visible = std::min(group.keep_tokens, limits_.max_tokens)});
      continue;
    }
    const int64_t least = group.has_index ? index_topk_ : kLeastVisible;
    const int64_t most = std::max<int64_t>(1, limits_.max_tokens / group.ratio);
    const int64_t entries = std::min(most, pow2_at_least(std::max(visible[g], least)));
    all.groups.push_back({.closed = closed,
                          .visible = entries,
                          .pages = ceil_div(entries, int64_t{group.page_entries})});
  }
  return all;
}

int64_t CapturedSteps::most_tokens() const {
  return std::min(limits_.max_batch_tokens, limits_.logits_rows());
}

std::optional<StepExtents> CapturedSteps::padded(const StepExtents& exact,
                                                 int64_t run_tokens) const {
  if (exact.logits_rows != exact.tokens || run_tokens > kMaxRunTokens) return {};
  const int64_t runs = std::min<int64_t>(captured_size(exact.runs), limits_.max_sequences);
  const int64_t tokens = runs * ceil_div(exact.tokens, runs);
  if (tokens > most_tokens()) return {};
  std::vector<int64_t> visible;
  for (const StepExtents::Group& group : exact.groups) visible.push_back(group.visible);
  StepExtents padded = extents(runs, tokens, visible);
  padded.enters = exact.enters;
  return padded;
}

StepExtents CapturedSteps::draft(int64_t exact_runs) const {
  const int64_t runs = std::min<int64_t>(captured_size(exact_runs), limits_.max_sequences);
  return {.tokens = runs,
          .runs = runs,
          .groups = {{.closed = runs,
                      .visible = std::min(groups_[kWindowGroup].keep_tokens, limits_.max_tokens)}}};
}

// Entries grow with the context, but a group with an indexer lists all of them only while it would
// choose all: its longest lists are those of the most entries that it may choose.
std::vector<StepExtents> CapturedSteps::largest() const {
  std::vector<int64_t> contexts = {limits_.max_tokens};
  for (const CacheGroupSpec& group : groups_) {
    if (group.has_index) contexts.push_back(group.ratio * index_topk_ + group.ratio - 1);
  }
  std::vector<StepExtents> steps;
  for (const int64_t context : contexts) {
    if (context > limits_.max_tokens) continue;
    for (int64_t run_tokens = 1; run_tokens <= kMaxRunTokens; ++run_tokens) {
      const int64_t runs = std::min<int64_t>(limits_.max_sequences, most_tokens() / run_tokens);
      if (runs == 0) break;
      std::vector<int64_t> visible;
      for (const CacheGroupSpec& group : groups_) visible.push_back(context / group.ratio);
      steps.push_back(extents(runs, runs * run_tokens, visible));
    }
  }
  return steps;
}

}  // namespace dsv4
