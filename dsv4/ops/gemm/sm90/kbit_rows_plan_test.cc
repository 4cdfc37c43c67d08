// Plans of kbit_rows_plan.h: every row and every unit of columns once, within the shared memory of
// a CTA, on one wave of CTAs.

#include "dsv4/ops/gemm/sm90/kbit_rows_plan.h"

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/formats/codebook.h"

namespace dsv4::gemm::kbit_rows {
namespace {

constexpr int kSms = 132;
constexpr int64_t kShapes[][2] = {{8192, 8192},  {14336, 4096}, {5120, 2048},  {28672, 8192},
                                  {8192, 28672}, {512, 2048},   {2048, 512},   {1, 32},
                                  {77, 96},      {4096, 7168},  {129280, 4096}};

template <class Body>
void for_all(const Body& body) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const auto& [n, k] : kShapes) {
      for (const int64_t tokens : {1, 2, 3, 8, 9, 16, 33, 64}) {
        SCOPED_TRACE(fmt::format("k{} {} x {} t={}", bits, n, k, tokens));
        const Shape shape{.bits = bits, .n = n, .k = k, .tokens = tokens};
        body(shape, make_plan(shape, kSms));
      }
    }
  }
}

TEST(KbitRowsPlan, CoversRowsAndColumnsOnce) {
  for_all([](const Shape& s, const Plan& p) {
    ASSERT_GT(p.cells, 0);
    EXPECT_EQ(p.row_groups * p.k_groups(), kWarpgroups);
    const int groups = p.clusters * p.rounds * p.row_groups;
    EXPECT_TRUE(p.rows > 0 && p.rows <= kGroupRows);
    EXPECT_EQ(p.first_row(0), 0);
    EXPECT_EQ(p.first_row(groups), s.n);
    for (int i = 0; i < groups; ++i) EXPECT_LE(p.first_row(i + 1) - p.first_row(i), p.rows);
    EXPECT_GE(int64_t{p.units} * kUnit, s.k);
    EXPECT_LT(int64_t{p.units - 1} * kUnit, s.k);
    EXPECT_EQ(p.first_stage(0), 0);
    EXPECT_EQ(p.first_stage(p.ranks * p.k_groups()), p.row_stages);
    for (int rank = 0; rank < p.ranks; ++rank)
      EXPECT_LE(p.rank_first_unit(rank + 1) - p.rank_first_unit(rank), p.rank_units());
  });
}

TEST(KbitRowsPlan, FitsTheGpu) {
  for_all([](const Shape& s, const Plan& p) {
    EXPECT_LE(Layout(s.bits, p).bytes, sm90::kMaxSmem);
    EXPECT_GE(p.stages, 2);
    EXPECT_LE(p.clusters * p.ranks * ceil_div(s.tokens, int64_t{p.cells}), kSms);
  });
}

// As the order of additions does.
TEST(KbitRowsPlan, DependsOnRowsOfXByPowersOfTwo) {
  for (const int64_t tokens : {3, 5, 6, 7, 10, 20}) {
    int64_t power = 1;
    while (power < tokens) power *= 2;
    const Plan some = make_plan({.bits = 3, .n = 8192, .k = 8192, .tokens = tokens}, kSms);
    const Plan all = make_plan({.bits = 3, .n = 8192, .k = 8192, .tokens = power}, kSms);
    EXPECT_TRUE(some.cells == all.cells && some.ranks == all.ranks &&
                some.stage_units == all.stage_units);
  }
}

}  // namespace
}  // namespace dsv4::gemm::kbit_rows
