// How calls of kbit_experts.h are divided: every block once, and an order of additions that only
// the weight decides.

#include "dsv4/ops/gemm/cuda/kbit_experts_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/formats/kbit.h"

namespace dsv4::gemm::kbit_experts {
namespace {

TEST(KbitExpertsPlan, EveryBlockAndUnitOnce) {
  for (const int sms : {1, 3, 132}) {
    for (const int64_t n : {1, 16, 100, 512, 2048, 4096, 7168}) {
      for (const int64_t k : {32, 128, 288, 512, 2048, 4096, 7168}) {
        for (const int sides : {1, 2}) {
          for (const int64_t most : {1, 6, 48, 1024}) {
            const Plan plan = make_plan(n, k, sides, most, sms);
            ASSERT_LE(plan.row_tiles * sides, kGroupTiles);
            ASSERT_EQ(plan.row_groups() * plan.k_groups, kWarps);
            ASSERT_GE(int64_t{plan.row_blocks} * plan.block_rows(), n);
            ASSERT_LT(int64_t{plan.row_blocks - 1} * plan.block_rows(), n);
            ASSERT_EQ(plan.first_unit(0), 0);
            ASSERT_EQ(plan.first_unit(plan.k_groups) * int64_t{kUnit}, align_up(k, kUnit));
            for (int g = 0; g < plan.k_groups; ++g)  // the ring counts on a unit for every warp
              ASSERT_LT(plan.first_unit(g), plan.first_unit(g + 1));
            for (const int items : {0, 1, static_cast<int>(most)}) {
              ASSERT_EQ(plan.first_block(items, 0), 0);
              ASSERT_EQ(plan.first_block(items, plan.ctas), items * plan.row_blocks);
              for (int cta = 0; cta < plan.ctas; ++cta)
                ASSERT_LE(plan.first_block(items, cta), plan.first_block(items, cta + 1));
            }
          }
        }
      }
    }
  }
}

TEST(KbitExpertsPlan, OnlyTheWeightDecidesTheOrderOfAdditions) {
  for (const int64_t k : {32, 512, 2048, 4096}) {
    const int groups = make_plan(2048, k, 1, 1, 132).k_groups;
    for (const int64_t items : {1, 48, 1024}) {
      for (const int sms : {8, 132}) EXPECT_EQ(make_plan(2048, k, 1, items, sms).k_groups, groups);
      EXPECT_EQ(make_plan(2048, k, 2, items, 132).k_groups, groups);
    }
  }
}

TEST(KbitExpertsPlan, TwoCtasFitOnAnSm) {
  constexpr int kShared = 113 << 10;  // (228 KB - 2 x 1 KB) / 2
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits)
    EXPECT_LE(Layout(bits).bytes, kShared) << bits;
}

// The experts of V4-Flash on an H200: slots of the warp with most work.
TEST(KbitExpertsPlan, SlotsOfAWarp) {
  const auto slots = [](int64_t n, int64_t k, int sides, int items) {
    const Plan plan = make_plan(n, k, sides, items, 132);
    int most = 0;
    for (int cta = 0; cta < plan.ctas; ++cta)
      most = std::max(most, plan.first_block(items, cta + 1) - plan.first_block(items, cta));
    return most * plan.row_tiles * sides * static_cast<int>(ceil_div(plan.units, plan.k_groups));
  };
  EXPECT_EQ(slots(2048, 4096, 2, 6), 24);  // one token; 23.3 if work were divisible
  EXPECT_EQ(slots(4096, 2048, 1, 6), 12);
  EXPECT_EQ(slots(2048, 4096, 2, 200), 776);
  EXPECT_EQ(slots(4096, 2048, 1, 200), 388);
}

}  // namespace
}  // namespace dsv4::gemm::kbit_experts
