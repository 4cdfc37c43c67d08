#include "dsv4/grammar/seen_set.h"

#include <gtest/gtest.h>

#include <set>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

TEST(SeenSet, EqualsASetThroughGrowthAndClearing) {
  Rng rng(1);
  SeenSet seen;
  for (const int64_t keys : {10, 1000, 3, 40'000, 5, 200}) {
    std::set<uint64_t> expected;
    for (int64_t i = 0; i < 2 * keys; ++i) {
      // Keys that differ in their upper or lower half only, and zero.
      const auto part = static_cast<uint64_t>(rng.below(keys));
      const uint64_t key = i % 2 == 0 ? part : part << 32;
      ASSERT_EQ(seen.insert(key), expected.insert(key).second) << keys << ", " << key;
    }
    seen.clear();
  }
}

}  // namespace
}  // namespace dsv4
