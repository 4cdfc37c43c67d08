// Plans of kbit_stream_plan.h: every tile and every unit of columns once, and within the shared
// memory of half an SM.

#include "dsv4/ops/gemm/cuda/kbit_stream_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/formats/kbit.h"

namespace dsv4::gemm::kbit_stream {
namespace {

TEST(KbitStreamPlan, EveryTileAndUnitOnce) {
  for (const int64_t n : {1, 16, 70, 1024, 5120, 8192, 14336, 128256}) {
    for (const int64_t k : {32, 128, 416, 2048, 5120, 8192, 28672}) {
      for (const int tokens : {8, 16}) {
        SCOPED_TRACE(testing::Message() << n << " x " << k << ", " << tokens << " tokens");
        const Plan plan = make_plan(n, k, tokens, 132);
        EXPECT_EQ(plan.k_groups, make_plan(n, k, 24 - tokens, 132).k_groups);
        EXPECT_EQ(plan.first_unit(0), 0);
        EXPECT_EQ(plan.first_unit(plan.k_groups), ceil_div(k, int64_t{kUnit}));
        EXPECT_EQ(plan.first_tile(0), 0);
        EXPECT_EQ(plan.first_tile(plan.ctas), ceil_div(n, int64_t{kTileRows}));
        EXPECT_LE(plan.group_tiles, max_group_tiles(tokens));
        for (int cta = 0; cta < plan.ctas; ++cta) {
          const int tiles = plan.first_tile(cta + 1) - plan.first_tile(cta);
          EXPECT_GE(tiles, 1);
          EXPECT_LE(tiles, plan.rounds * plan.row_groups() * plan.group_tiles);
        }
      }
    }
  }
}

TEST(KbitStreamPlan, TwoCtasFitOnAnSm) {
  constexpr int kShared = 113 << 10;  // (228 KB - 2 x 1 KB) / 2
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits)
    for (const int tokens : {8, 16}) EXPECT_LE(Layout(bits, tokens).bytes, kShared) << bits;
}

}  // namespace
}  // namespace dsv4::gemm::kbit_stream
