// The shares of ranks cover everything once, for any number of ranks and units.

#include "dsv4/comm/shard_id.h"

#include <gtest/gtest.h>

#include "dsv4/comm/communicator.h"

namespace dsv4 {
namespace {

TEST(ShardId, SharesAreDisjointAndCoverAll) {
  for (int world = 1; world <= 9; ++world) {
    for (const int64_t n : {0, 1, 2, 7, 40, 128, 129, 1536, 129280}) {
      for (const int64_t unit : {1, 3, 128}) {
        const int64_t units = ceil_div(n, unit);
        int64_t next = 0, least = units, most = 0;
        for (int rank = 0; rank < world; ++rank) {
          const ShardId id{rank, world};
          const auto [begin, end] = id.rows(n, unit);
          EXPECT_EQ(begin, next);
          EXPECT_TRUE(begin % unit == 0 || begin == n) << begin << " of " << n;
          next = end;
          const int64_t own = id.end_unit(units) - id.first_unit(units);
          least = std::min(least, own), most = std::max(most, own);
        }
        EXPECT_EQ(next, n);
        EXPECT_LE(most - least, 1) << world << " ranks, " << n << " rows";
      }
    }
  }
}

TEST(ShardId, ColumnEnds) {
  EXPECT_EQ(column_ends(3, 256, 128), (ColumnEnds{0, 128, 256}));
  EXPECT_EQ(column_ends(2, 300, 128), (ColumnEnds{128, 300}));
  EXPECT_EQ(column_ends(2, 3, 1, 1024), (ColumnEnds{1024, 3072}));
}

}  // namespace
}  // namespace dsv4
