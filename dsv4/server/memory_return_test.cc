#include "dsv4/server/memory_return.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

using std::chrono::seconds;

const MemoryReturn::Time kStart = MemoryReturn::Time() + std::chrono::hours(1);

TEST(MemoryReturn, FollowsALargeBody) {
  MemoryReturn memory;
  EXPECT_FALSE(memory.is_due(kStart, false, false)) << "nothing was used";
  memory.used(size_t{16} << 20);
  EXPECT_FALSE(memory.is_due(kStart, /*reading=*/true, false)) << "it is in use";
  EXPECT_TRUE(memory.is_due(kStart, false, /*running=*/true));
  memory.used(size_t{16} << 20);
  EXPECT_FALSE(memory.is_due(kStart, false, true)) << "just done";
  EXPECT_TRUE(memory.is_due(kStart + seconds(1), false, true));
  EXPECT_FALSE(memory.is_due(kStart + seconds(60), false, true)) << "nothing large since then";
}

TEST(MemoryReturn, FollowsTheLastOfSmallRequests) {
  MemoryReturn memory;
  memory.used(100);
  EXPECT_FALSE(memory.is_due(kStart, false, /*running=*/true));
  EXPECT_FALSE(memory.is_due(kStart + seconds(4), false, false));
  EXPECT_TRUE(memory.is_due(kStart + seconds(6), false, false));
  EXPECT_FALSE(memory.is_due(kStart + seconds(60), false, false));
}

}  // namespace
}  // namespace dsv4
