// Plans of kbit_wide_plan.h: every unit once, shares that do not depend on the rows of x, and the
// tiles that the shapes of docs/kernels/kbit.md want.

#include "dsv4/ops/gemm/sm90/kbit_wide_plan.h"

#include <gtest/gtest.h>

namespace dsv4::gemm::kbit_wide {
namespace {

constexpr int kH200 = 132;

TEST(KbitWidePlan, EveryRowAndUnitOnce) {
  for (const int64_t n : {1, 64, 300, 1024, 5120, 8192, 14336, 128256}) {
    for (const int64_t k : {512, 1024, 2048, 5120, 8192, 28672}) {
      const int ranks = make_plan(n, k, 64, kH200).rank_bits;
      for (const int64_t tokens : {1, 33, 64, 65, 96, 128, 192, 256, 300, 512, 4096}) {
        SCOPED_TRACE(testing::Message() << n << " x " << k << ", " << tokens << " tokens");
        const Plan plan = make_plan(n, k, tokens, kH200);
        EXPECT_EQ(plan.rank_bits, ranks);
        EXPECT_EQ(first_unit(plan.units, ranks, 0), 0);
        EXPECT_EQ(first_unit(plan.units, ranks, plan.ranks()), ceil_div(k, int64_t{kUnit}));
        for (int rank = 0; rank < plan.ranks(); ++rank)
          EXPECT_LT(first_unit(plan.units, ranks, rank), first_unit(plan.units, ranks, rank + 1));
        EXPECT_GE(plan.row_tiles * plan.tile.rows(), n);
        EXPECT_LT((plan.row_tiles - 1) * plan.tile.rows(), n);
        EXPECT_GE(plan.x_tiles * plan.tile.columns, tokens);
        EXPECT_LT((plan.x_tiles - 1) * plan.tile.columns, tokens);
      }
    }
  }
}

// All CTAs of these run at once on an H200.
TEST(KbitWidePlan, OneWave) {
  for (const auto& [n, k] : {std::pair{8192, 8192}, {14336, 4096}, {5120, 2048}, {1024, 8192}}) {
    for (const int64_t tokens : {33, 64, 96, 128, 192, 256}) {
      const Plan plan = make_plan(n, k, tokens, kH200);
      EXPECT_LE(plan.row_tiles * plan.x_tiles, resident_clusters(plan.rank_bits, kH200))
          << n << " x " << k << ", " << tokens << " tokens";
    }
  }
}

// As many SMs as the shape lets work; a GPC has whole clusters, so 30 of four CTAs run at once.
TEST(KbitWidePlan, MostSmsWork) {
  const auto ctas = [](int64_t n, int64_t k, int64_t tokens) {
    const Plan plan = make_plan(n, k, tokens, kH200);
    return plan.row_tiles * plan.x_tiles * plan.ranks();
  };
  for (const int64_t tokens : {64, 128, 256}) {
    EXPECT_EQ(ctas(8192, 8192, tokens), 128) << tokens;
    EXPECT_EQ(ctas(14336, 4096, tokens), 112) << tokens;
    EXPECT_GE(ctas(1024, 8192, tokens), 64) << tokens;
  }
}

}  // namespace
}  // namespace dsv4::gemm::kbit_wide
