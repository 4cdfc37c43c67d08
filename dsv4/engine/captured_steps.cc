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

StepExtents::Group CapturedSteps::padded(const CacheGroupSpec& group, int64_t visible, int64_t runs,
                                         int64_t run_tokens) const {
  if (group.keep_tokens > 0)
    return {.closed = runs * run_tokens,
            .visible = std::min(group.keep_tokens, limits_.max_tokens)};
  const int64_t least = group.has_index ? index_topk_ : kLeastVisible;
  const int64_t most = std::max<int64_t>(1, limits_.max_tokens / group.ratio);
  const int64_t entries = std::min(most, pow2_at_least(std::max(visible, least)));
  return {.closed = runs * ceil_div(run_tokens, group.ratio),
          .visible = entries,
          .pages = ceil_div(entries, group.page_entries)};
}

int64_t CapturedSteps::most_tokens() const {
  return std::min(limits_.max_batch_tokens, limits_.logits_rows());
}

std::optional<StepExtents> CapturedSteps::padded(const StepExtents& exact,
                                                 int64_t run_tokens) const {
  if (exact.logits_rows != exact.tokens || run_tokens > kMaxRunTokens) return {};
  const int64_t runs = std::min<int64_t>(pow2_at_least(exact.runs), limits_.max_sequences);
  const int64_t tokens = runs * run_tokens;
  if (tokens > most_tokens()) return {};
  StepExtents extents{.tokens = tokens, .runs = runs, .logits_rows = tokens};
  for (size_t g = 0; g < groups_.size(); ++g)
    extents.groups.push_back(padded(groups_[g], exact.groups[g].visible, runs, run_tokens));
  return extents;
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
      StepExtents extents{
          .tokens = runs * run_tokens, .runs = runs, .logits_rows = runs * run_tokens};
      for (const CacheGroupSpec& group : groups_)
        extents.groups.push_back(padded(group, context / group.ratio, runs, run_tokens));
      steps.push_back(std::move(extents));
    }
  }
  return steps;
}

}  // namespace dsv4
