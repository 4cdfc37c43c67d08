#include "dsv4/engine/captured_steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/model/released.h"

namespace dsv4 {
namespace {

ModelConfig config_with_topk(int64_t topk) {
  ModelConfig config = parse_config(released_config_json("flash"), "Flash's config");
  config.index_topk = topk;
  return config;
}

int64_t list_bytes(const ModelConfig& config, std::span<const CacheGroupSpec> groups,
                   const StepExtents& extents) {
  Scratch lists = Scratch::counting(), scratch = Scratch::counting();
  const Context context;
  make_step(context, config, groups, {}, extents, StepLists(lists), scratch);
  return lists.peak_bytes();
}

// A step of sequences of `context` tokens, of which so many are new in each run.
StepExtents step_of_runs(std::span<const CacheGroupSpec> groups,
                         std::span<const int64_t> new_tokens, int64_t context) {
  StepExtents extents{.runs = std::ssize(new_tokens)};
  for (const int64_t tokens : new_tokens) extents.tokens += tokens;
  extents.logits_rows = extents.tokens;
  for (const CacheGroupSpec& group : groups) {
    const int64_t visible = context / group.ratio;
    StepExtents::Group& one = extents.groups.emplace_back();
    one.visible = group.keep_tokens > 0 ? std::min(visible, group.keep_tokens) : visible;
    for (const int64_t tokens : new_tokens)
      one.closed += visible - (context - tokens) / group.ratio;
  }
  return extents;
}

// A step of `runs` equal sequences of `context` tokens, the last run_tokens of which are new.
StepExtents exact_step(std::span<const CacheGroupSpec> groups, int64_t runs, int64_t run_tokens,
                       int64_t context) {
  return step_of_runs(groups, std::vector<int64_t>(static_cast<size_t>(runs), run_tokens), context);
}

TEST(CapturedSteps, HaveRoomForTheExactStep) {
  Rng rng(5);
  const ModelConfig config = config_with_topk(64);
  const std::vector<CacheGroupSpec> groups = cache_groups(config);
  int captured = 0;
  for (int i = 0; i < 2000; ++i) {
    const CacheLimits limits{.max_tokens = 1 + rng.below(20000),
                             .max_sequences = 1 + static_cast<int>(rng.below(40)),
                             .max_batch_tokens = 1 + rng.below(400),
                             .max_logits_rows = 1 + rng.below(400)};
    const int64_t runs = 1 + rng.below(limits.max_sequences), run_tokens = 1 + rng.below(9);
    const int64_t context = run_tokens + rng.below(20000);
    if (context > limits.max_tokens) continue;
    std::vector<int64_t> tokens = {run_tokens};
    while (std::ssize(tokens) < runs) tokens.push_back(1 + rng.below(run_tokens));
    const StepExtents exact = step_of_runs(groups, tokens, context);
    const auto padded = CapturedSteps(groups, config.index_topk, limits).padded(exact, run_tokens);
    if (!padded) continue;
    ++captured;
    EXPECT_LE(padded->tokens, std::min(limits.max_batch_tokens, limits.max_logits_rows));
    EXPECT_GE(padded->tokens, exact.tokens);
    EXPECT_GE(padded->runs, exact.runs);
    for (size_t g = 0; g < groups.size(); ++g) {
      EXPECT_GE(padded->groups[g].visible, exact.groups[g].visible) << groups[g].name;
      EXPECT_GE(padded->groups[g].closed, exact.groups[g].closed) << groups[g].name;
    }
  }
  EXPECT_GT(captured, 200);
}

// Found by `eval logits demo --chunk 7`: while the indexer would choose all entries, the lists of a
// padded step were longer than those of every planned step.
TEST(CapturedSteps, TheLargestHaveTheLongestLists) {
  Rng rng(6);
  int captured = 0;
  for (int i = 0; i < 3000; ++i) {
    const ModelConfig config = config_with_topk(1 + rng.below(600));
    const std::vector<CacheGroupSpec> groups = cache_groups(config);
    const CacheLimits limits{.max_tokens = 1 + rng.below(20000),
                             .max_sequences = 1 + static_cast<int>(rng.below(40)),
                             .max_batch_tokens = 1 + rng.below(400),
                             .max_logits_rows = 1 + rng.below(400)};
    const CapturedSteps steps(groups, config.index_topk, limits);
    int64_t planned = 0;
    for (const StepExtents& step : steps.largest())
      planned = std::max(planned, list_bytes(config, groups, step));
    const int64_t run_tokens = 1 + rng.below(8);
    const int64_t context = std::min(limits.max_tokens, run_tokens + rng.below(20000));
    std::vector<int64_t> tokens = {std::min(run_tokens, context)};
    for (int64_t others = rng.below(limits.max_sequences); others > 0; --others)
      tokens.push_back(rng.below(2) == 0 ? tokens[0] : 1);
    const auto padded = steps.padded(step_of_runs(groups, tokens, context), tokens[0]);
    if (!padded) continue;
    ++captured;
    EXPECT_LE(list_bytes(config, groups, *padded), planned)
        << fmt::format("top {}, {} sequences of {} tokens, context {} of {}", config.index_topk,
                       padded->runs, run_tokens, context, limits.max_tokens);
  }
  EXPECT_GT(captured, 500);
}

// Rows of padding read experts too: a step of an everyday number of sequences has few or none.
TEST(CapturedSteps, AddFewRows) {
  const ModelConfig config = config_with_topk(512);
  const std::vector<CacheGroupSpec> groups = cache_groups(config);
  const CapturedSteps steps(
      groups, config.index_topk,
      {.max_tokens = 8192, .max_sequences = 64, .max_batch_tokens = 512, .max_logits_rows = 512});
  const auto padded = [&](const std::vector<int64_t>& new_tokens) {
    const StepExtents exact = step_of_runs(groups, new_tokens, 1000);
    const auto extents = steps.padded(exact, *std::ranges::max_element(new_tokens));
    return std::pair(extents->runs, extents->tokens);
  };
  using Size = std::pair<int64_t, int64_t>;
  for (int64_t run_tokens = 1; run_tokens <= kMaxRunTokens; ++run_tokens) {
    for (const int64_t runs : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64})
      EXPECT_EQ(padded(std::vector<int64_t>(static_cast<size_t>(runs), run_tokens)),
                Size(runs, runs * run_tokens));
  }
  EXPECT_EQ(padded({1, 1, 1, 1, 1}), Size(6, 6));
  EXPECT_EQ(padded(std::vector<int64_t>(17, 1)), Size(24, 24));
  EXPECT_EQ(padded(std::vector<int64_t>(33, 2)), Size(48, 96));
  // One of eight sequences has drafts.
  EXPECT_EQ(padded({8, 1, 1, 1, 1, 1, 1, 1}), Size(8, 16));
  EXPECT_EQ(padded({3, 3, 3, 3, 3}), Size(6, 18));
}

TEST(CapturedSteps, OnlyStepsOfFewTokensWithAllLogits) {
  const ModelConfig config = config_with_topk(512);
  const std::vector<CacheGroupSpec> groups = cache_groups(config);
  const CapturedSteps steps(
      groups, config.index_topk,
      {.max_tokens = 4096, .max_sequences = 4, .max_batch_tokens = 64, .max_logits_rows = 64});
  EXPECT_TRUE(steps.padded(exact_step(groups, 3, 8, 1000), 8));
  EXPECT_FALSE(steps.padded(exact_step(groups, 3, 9, 1000), 9));
  StepExtents last_only = exact_step(groups, 3, 8, 1000);
  last_only.logits_rows = 3;
  EXPECT_FALSE(steps.padded(last_only, 8));
}

}  // namespace
}  // namespace dsv4
