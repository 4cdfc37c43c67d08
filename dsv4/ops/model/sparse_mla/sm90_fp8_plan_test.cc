#include "dsv4/ops/model/sparse_mla/sm90_fp8/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "dsv4/base/bits.h"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {
namespace {

constexpr int kNumSms = 132;

// Every list position is in exactly one split.
void expect_whole(const Plan& plan, int topk) {
  EXPECT_TRUE(plan.heads == 8 || plan.heads == 16 || plan.heads == 32 || plan.heads == 64);
  EXPECT_GT(plan.split_keys, 0);
  EXPECT_EQ(plan.split_keys % 64, 0);
  EXPECT_GE(plan.num_splits, 1);
  EXPECT_LE(plan.num_splits, kMaxSplits);
  EXPECT_TRUE(splits_fit(plan.heads, plan.num_splits));
  EXPECT_GE(int64_t{plan.split_keys} * plan.num_splits, topk);
  EXPECT_LT(int64_t{plan.split_keys} * (plan.num_splits - 1), std::max(topk, 1))
      << "an empty split";
}

TEST(Sm90Fp8Plan, SplitsCoverEveryList) {
  for (const int64_t queries : {1, 2, 7, 32, 128, 133, 4096}) {
    for (const int heads : {1, 8, 9, 20, 64, 100, 128}) {
      for (const int topk : {0, 1, 64, 65, 640, 1152, 2048, 9000, 100000}) {
        expect_whole(plan_call(queries, heads, topk, kNumSms), topk);
      }
    }
  }
}

// Many queries are not split; few are, so that they fill the GPU.
TEST(Sm90Fp8Plan, FillsTheGpu) {
  const Plan full = plan_call(256, 64, 640, kNumSms), one = plan_call(1, 64, 640, kNumSms);
  EXPECT_EQ(full.heads, 64);
  EXPECT_EQ(full.num_splits, 1);
  EXPECT_GE(64 / one.heads * one.num_splits, 20);
  for (const int topk : {1, 64, 128}) {
    EXPECT_LE(plan_call(1, 64, topk, kNumSms).heads, 8) << topk;
    EXPECT_LE(plan_call(8, 64, topk, kNumSms).heads, 16) << topk;
  }
}

// The fastest of those measured on an H100, or within 2 % of it (docs/kernels/sparse_mla.md).
TEST(Sm90Fp8Plan, ChoosesTheMeasuredBest) {
  struct Best {
    int64_t queries;
    int heads, topk;
    Plan plan;
  };
  for (const Best& best : {Best{1, 64, 640, {8, 128, 5}}, Best{8, 64, 640, {32, 128, 5}},
                           Best{16, 64, 640, {32, 256, 3}}, Best{32, 64, 640, {32, 320, 2}},
                           Best{64, 64, 640, {64, 320, 2}}, Best{128, 64, 640, {64, 640, 1}},
                           Best{16, 128, 1152, {32, 576, 2}}, Best{32, 128, 1152, {64, 576, 2}},
                           Best{64, 128, 1152, {64, 1152, 1}}, Best{32, 8, 640, {8, 256, 3}},
                           Best{32, 16, 640, {16, 256, 3}}, Best{32, 32, 640, {32, 256, 3}},
                           Best{64, 64, 128, {32, 128, 1}}, Best{64, 64, 2176, {64, 1088, 2}}}) {
    SCOPED_TRACE(fmt::format("{} queries of {} heads", best.queries, best.heads));
    const Plan plan = plan_call(best.queries, best.heads, best.topk, kNumSms);
    EXPECT_EQ(plan.heads, best.plan.heads);
    EXPECT_EQ(plan.split_keys, best.plan.split_keys);
    EXPECT_EQ(plan.num_splits, best.plan.num_splits);
  }
}

// Few heads do not get CTAs of 64.
TEST(Sm90Fp8Plan, FewHeadsGetSmallCtas) {
  EXPECT_EQ(plan_call(32, 8, 640, kNumSms).heads, 8);
  EXPECT_LE(plan_call(32, 16, 640, kNumSms).heads, 16);
}

// Splits start at the same positions for every length of the list.
TEST(Sm90Fp8Plan, InvariantSplitsHaveFixedPositions) {
  for (const auto& [topk, splits] :
       {std::pair{1, 1},
        {320, 1},
        {321, 2},
        {640, 2},
        {641, 3},
        {2560, 4},
        {5121, 8},  // six, or eight where partials of six would not fit
        {kMostInvariantKeys, 8}}) {
    for (const int queries : {1, 8, 32, 4096}) {
      const Plan plan = plan_invariant(queries, 64, topk, kNumSms);
      EXPECT_TRUE(plan.invariant);
      EXPECT_LT(plan.heads, 64) << "another way to the first row max";
      EXPECT_EQ(plan.split_keys, kInvariantSplitKeys);
      EXPECT_GE(plan.num_splits, std::min(splits, 6)) << topk;
      EXPECT_LE(plan.num_splits, splits) << topk;
      EXPECT_GE(int64_t{kInvariantSplitKeys} << (plan.num_splits - 1), topk);
      EXPECT_TRUE(splits_fit(plan.heads, plan.num_splits));
    }
  }
  EXPECT_LT(plan_invariant(1, 64, 640, kNumSms).heads, 32) << "few queries are spread";
  EXPECT_EQ(plan_invariant(4096, 64, 640, kNumSms).heads, 32);
}

}  // namespace
}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
