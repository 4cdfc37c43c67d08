#include "dsv4/engine/captured_steps.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

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

// A step of `runs` equal sequences of `context` tokens, the last run_tokens of which are new.
StepExtents exact_step(std::span<const CacheGroupSpec> groups, int64_t runs, int64_t run_tokens,
                       int64_t context) {
  StepExtents extents{.tokens = runs * run_tokens, .runs = runs, .logits_rows = runs * run_tokens};
  for (const CacheGroupSpec& group : groups) {
    const int64_t visible = context / group.ratio;
    extents.groups.push_back(
        {.closed = runs * (visible - (context - run_tokens) / group.ratio),
         .visible = group.keep_tokens > 0 ? std::min(visible, group.keep_tokens) : visible});
  }
  return extents;
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
    const StepExtents exact = exact_step(groups, runs, run_tokens, context);
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
    const auto padded = steps.padded(exact_step(groups, 1 + rng.below(limits.max_sequences),
                                                std::min(run_tokens, context), context),
                                     std::min(run_tokens, context));
    if (!padded) continue;
    ++captured;
    EXPECT_LE(list_bytes(config, groups, *padded), planned)
        << fmt::format("top {}, {} sequences of {} tokens, context {} of {}", config.index_topk,
                       padded->runs, run_tokens, context, limits.max_tokens);
  }
  EXPECT_GT(captured, 500);
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
