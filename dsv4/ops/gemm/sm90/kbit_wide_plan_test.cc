// Plans of kbit_wide_plan.h: every unit once, shares that do not depend on the rows of x, and the
// tiles and shares that were measured fastest.

#include "dsv4/ops/gemm/sm90/kbit_wide_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace dsv4::gemm::kbit_wide {
namespace {

constexpr int kH200 = 132;

TEST(KbitWidePlan, EveryRowAndUnitOnce) {
  for (const int64_t n : {1, 64, 300, 1024, 5120, 8192, 14336, 128256}) {
    for (const int64_t k : {512, 1024, 2048, 5120, 8192, 28672}) {
      const int ranks = make_plan(n, k, 64, kH200).rank_bits;
      for (const int64_t tokens : {1, 17, 32, 33, 64, 65, 96, 128, 192, 256, 300, 512, 4096}) {
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
    for (const int64_t tokens : {17, 32, 33, 64, 96, 128, 192, 256}) {
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
  for (const int64_t tokens : {17, 64, 128, 256}) {
    EXPECT_EQ(ctas(8192, 8192, tokens), 128) << tokens;
    EXPECT_EQ(ctas(14336, 4096, tokens), 112) << tokens;
    EXPECT_GE(ctas(1024, 8192, tokens), 64) << tokens;
  }
}

// The fastest tile of each number of shares: microseconds of a call on an H200 with x put in order,
// K = 4, bf16, weights from memory. Shares that are missing were not measured: more than two CTAs
// for each SM, or few.
struct Measured {
  int64_t n, k, tokens;
  Tile tile;
  int ranks;
  double us;
};
constexpr Measured kMeasured[] = {
    {8192, 8192, 64, {2, 32}, 1, 36.1},    {8192, 8192, 64, {2, 64}, 2, 25.5},
    {8192, 8192, 64, {2, 64}, 4, 41.8},    {8192, 8192, 64, {4, 64}, 8, 41.5},
    {8192, 8192, 96, {2, 64}, 1, 45.3},    {8192, 8192, 96, {2, 96}, 2, 29.7},
    {8192, 8192, 96, {2, 96}, 4, 47.7},    {8192, 8192, 96, {4, 96}, 8, 51.9},
    {8192, 8192, 128, {2, 64}, 1, 46.9},   {8192, 8192, 128, {2, 128}, 2, 38.3},
    {8192, 8192, 128, {2, 128}, 4, 58.5},  {8192, 8192, 128, {4, 128}, 8, 61.9},
    {8192, 8192, 192, {2, 96}, 1, 54.4},   {8192, 8192, 192, {4, 96}, 2, 51.8},
    {8192, 8192, 192, {4, 96}, 4, 83.2},   {8192, 8192, 256, {2, 128}, 1, 68.9},
    {8192, 8192, 256, {4, 128}, 2, 64.3},  {8192, 8192, 256, {4, 128}, 4, 98.7},
    {14336, 4096, 64, {2, 64}, 1, 25.9},   {14336, 4096, 64, {4, 64}, 2, 23.5},
    {14336, 4096, 64, {4, 64}, 4, 29.2},   {14336, 4096, 96, {2, 96}, 1, 28.0},
    {14336, 4096, 96, {4, 96}, 2, 29.0},   {14336, 4096, 96, {4, 96}, 4, 36.0},
    {14336, 4096, 128, {2, 128}, 1, 34.8}, {14336, 4096, 128, {4, 128}, 2, 33.1},
    {14336, 4096, 128, {4, 128}, 4, 41.4}, {14336, 4096, 192, {4, 96}, 1, 47.0},
    {14336, 4096, 192, {4, 96}, 2, 55.5},  {14336, 4096, 256, {4, 128}, 1, 57.2},
    {14336, 4096, 256, {4, 128}, 2, 65.6}, {5120, 2048, 64, {2, 32}, 1, 13.0},
    {5120, 2048, 64, {2, 64}, 2, 10.8},    {5120, 2048, 64, {4, 64}, 4, 11.3},
    {5120, 2048, 64, {4, 64}, 8, 16.1},    {5120, 2048, 96, {2, 32}, 1, 13.5},
    {5120, 2048, 96, {2, 96}, 2, 12.1},    {5120, 2048, 96, {4, 96}, 4, 13.4},
    {5120, 2048, 96, {4, 96}, 8, 19.5},    {5120, 2048, 128, {2, 64}, 1, 16.0},
    {5120, 2048, 128, {2, 128}, 2, 14.3},  {5120, 2048, 128, {4, 128}, 4, 15.6},
    {5120, 2048, 128, {4, 128}, 8, 22.9},  {5120, 2048, 192, {2, 64}, 1, 16.5},
    {5120, 2048, 192, {4, 64}, 2, 15.5},   {5120, 2048, 192, {4, 64}, 4, 21.6},
    {5120, 2048, 256, {2, 96}, 1, 18.4},   {5120, 2048, 256, {4, 96}, 2, 18.5},
    {5120, 2048, 256, {4, 96}, 4, 25.4},   {1024, 8192, 64, {2, 32}, 4, 13.4},
    {1024, 8192, 64, {2, 64}, 8, 11.3},    {1024, 8192, 96, {2, 32}, 2, 22.5},
    {1024, 8192, 96, {2, 32}, 4, 15.4},    {1024, 8192, 96, {2, 96}, 8, 14.3},
    {1024, 8192, 128, {2, 32}, 2, 24.5},   {1024, 8192, 128, {2, 64}, 4, 19.6},
    {1024, 8192, 128, {2, 128}, 8, 18.0},  {1024, 8192, 192, {2, 64}, 2, 31.6},
    {1024, 8192, 192, {2, 64}, 4, 23.0},   {1024, 8192, 192, {4, 64}, 8, 22.6},
    {1024, 8192, 256, {2, 64}, 2, 35.1},   {1024, 8192, 256, {2, 96}, 4, 27.8},
    {1024, 8192, 256, {4, 96}, 8, 28.6},
};

TEST(KbitWidePlan, FastestTile) {
  int compared = 0;
  for (const Measured& m : kMeasured) {
    const Plan plan = make_plan(m.n, m.k, m.tokens, kH200);
    if (plan.ranks() != m.ranks) continue;
    EXPECT_EQ(plan.tile.groups, m.tile.groups) << m.n << " x " << m.k << ", " << m.tokens;
    EXPECT_EQ(plan.tile.columns, m.tile.columns) << m.n << " x " << m.k << ", " << m.tokens;
    ++compared;
  }
  EXPECT_EQ(compared, 20);
}

// One number of shares has to serve all numbers of rows.
TEST(KbitWidePlan, FastestShares) {
  struct Sum {
    int lines = 0;
    double us = 0;
  };
  std::map<std::pair<int64_t, int64_t>, std::map<int, Sum>> sums;
  for (const Measured& m : kMeasured) {
    Sum& sum = sums[{m.n, m.k}][m.ranks];
    ++sum.lines, sum.us += m.us;
  }
  for (const auto& [shape, of_ranks] : sums) {
    const Plan plan = make_plan(shape.first, shape.second, 64, kH200);
    const Sum& chosen = of_ranks.at(plan.ranks());
    EXPECT_EQ(chosen.lines, 5);
    for (const auto& [ranks, sum] : of_ranks) {
      if (sum.lines != 5) continue;
      EXPECT_LE(chosen.us, sum.us) << shape.first << " x " << shape.second << ", " << ranks;
    }
  }
}

TEST(KbitWidePlan, PredictsWhatWasMeasured) {
  constexpr double kClocksOfUs = 1750;
  for (const Measured& m : kMeasured) {
    int rank_bits = 0;
    while (1 << rank_bits < m.ranks) ++rank_bits;
    const double us = clocks(m.tile, m.n, m.k, m.tokens, rank_bits, kH200) / kClocksOfUs;
    EXPECT_LT(std::abs(us / m.us - 1), 0.1) << m.n << " x " << m.k << ", " << m.tokens << " rows, "
                                            << m.ranks << " shares: " << us << ", not " << m.us;
  }
}

}  // namespace
}  // namespace dsv4::gemm::kbit_wide
