#include "dsv4/engine/expert_places.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/rng.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

constexpr int64_t kHuge = int64_t{1} << 50;

// What `kept` places of every layer take together with the transient ones, from the text of the
// header: a place of each size is its own, half has the experts outside up to a 32nd of all places.
int64_t bytes_of(const std::vector<int64_t>& sizes, int64_t experts, int64_t kept, int64_t budget) {
  int64_t sum = 0, largest = 0;
  for (const int64_t size : sizes) sum += kept * size, largest = std::max(largest, size);
  const int64_t most = std::max<int64_t>(8, budget / largest / 32);
  return sum + 2 * std::min(experts - kept, most) * largest;
}

TEST(ExpertPlaces, FillTheBudget) {
  Rng rng(7);
  int planned = 0;
  for (int i = 0; i < 3000; ++i) {
    const int64_t experts = 2 + rng.below(300);
    std::vector<int64_t> sizes(static_cast<size_t>(3 + rng.below(60)));
    for (int64_t& size : sizes) size = 256 * (1 + rng.below(i % 2 == 0 ? 1 : 9));
    int64_t all = 0;
    for (const int64_t size : sizes) all += experts * size;
    const int64_t budget = 1 + rng.below(all + all / 8);
    if (budget < all && bytes_of(sizes, experts, 1, budget) > budget) {
      EXPECT_THROW(plan_places(sizes, experts, budget, kHuge), Error);
      continue;
    }
    ++planned;
    const ExpertPlaces places = plan_places(sizes, experts, budget, kHuge);
    ASSERT_LE(places.gpu_bytes(), budget);
    if (budget >= all) {
      EXPECT_TRUE(places.complete());
      EXPECT_EQ(places.host_bytes(), 0);
      EXPECT_EQ(places.transient(), 0);
      continue;
    }
    EXPECT_EQ(places.host_bytes(), all);
    const int64_t least = places.kept(places.layers() - 1);
    ASSERT_TRUE(least + 1 >= experts || bytes_of(sizes, experts, least + 1, budget) > budget);
    int64_t before = places.kept(0);
    for (int64_t l = 0; l < places.layers(); ++l) {
      EXPECT_LE(places.kept(l), before);
      EXPECT_LE(places.kept(l), experts);
      before = places.kept(l);
    }
    EXPECT_LE(places.kept(0), least + 1);
  }
  EXPECT_GT(planned, 1000);
}

TEST(ExpertPlaces, AlignsImages) {
  const ExpertPlaces places = plan_places({1000, 1000, 1000}, 16, 30 * 1024, kHuge);
  EXPECT_EQ(places.place_bytes[1], 1024);
  EXPECT_EQ(places.gpu_bytes(), 30 * 1024);
  EXPECT_EQ(places.half, 8);
  EXPECT_EQ(places.resident(), 30 - 16);
}

// What host memory lacks stays on the GPU for good.
TEST(ExpertPlaces, FixesWhatHostMemoryDoesNotHold) {
  const std::vector<int64_t> sizes(4, 256);
  const auto plan = [&](int64_t gpu, int64_t host) {
    return plan_places(sizes, 100, gpu * 256, host * 256);
  };
  EXPECT_EQ(plan(300, 400).homes(), 400);
  const ExpertPlaces places = plan(300, 250);
  EXPECT_EQ(places.homes(), 250);
  EXPECT_LE(places.host_bytes(), 250 * 256);
  for (int64_t l = 0; l < 4; ++l) {
    const auto i = static_cast<size_t>(l);
    EXPECT_GE(places.slots[i], 0);
    EXPECT_EQ(places.kept(l), plan(300, 400).kept(l));
  }
  EXPECT_EQ(test::error_of(ErrorCode::kResource, [&] { plan(300, 99); }),
            "24.75 KiB of host memory hold 99 of 400 experts, and the GPU holds 282 of 400: fewer "
            "bits (--experts), more host memory or a larger GPU is needed");
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kResource, [&] { plan(19, 400); }),
                         "a place in each of 4 layers and 16 in transit take 5.00 KiB"));
  EXPECT_EQ(plan(20, 400).resident(), 4);
}

}  // namespace
}  // namespace dsv4
