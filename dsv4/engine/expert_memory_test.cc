// What an expert store may take of both memories, and what is refused.

#include "dsv4/engine/expert_memory.h"

#include <gtest/gtest.h>

#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

constexpr int64_t kGib = int64_t{1} << 30, kMib = int64_t{1} << 20;
constexpr DenseBytes kDense{.weights = 10 * kGib, .cache = 4 * kGib, .workspace = 2 * kGib};

// Four layers of 64 experts of 256 MiB each: 64 GiB.
ExpertPlaces plan(const ExpertMemory& memory, int64_t free_bytes = 60 * kGib,
                  int64_t available_bytes = 200 * kGib) {
  return plan_expert_memory(memory, kDense, std::vector<int64_t>(4, 256 * kMib), 64, free_bytes,
                            available_bytes);
}

std::string refusal(const ExpertMemory& memory, int64_t available_bytes = 200 * kGib) {
  return test::error_of(ErrorCode::kResource, [&] { plan(memory, 60 * kGib, available_bytes); });
}

// 60 - 16 GiB, and a place has a quarter of one.
TEST(ExpertMemory, AutoLeavesAGibibyteOfTheGpu) {
  const int64_t taken = plan({}).gpu_bytes();
  EXPECT_LE(taken, 43 * kGib);
  EXPECT_GT(taken, 43 * kGib - 4 * 256 * kMib);
  EXPECT_EQ(plan({.gpu_bytes = 43 * kGib}).gpu_bytes(), taken);
}

TEST(ExpertMemory, AnExplicitSizeMayTakeAllThatIsFree) {
  EXPECT_GT(plan({.gpu_bytes = 44 * kGib}).gpu_bytes(), 43 * kGib);
  const std::string error = refusal({.gpu_bytes = 44 * kGib + 1});
  EXPECT_TRUE(test::says(error, "44.00 GiB for experts: of 60.00 GiB of GPU memory"));
  EXPECT_TRUE(test::says(error, "leaves 44.00 GiB"));
}

TEST(ExpertMemory, ACapCountsAsAllThatIsFree) {
  EXPECT_EQ(plan({.cap_bytes = 40 * kGib}).gpu_bytes(), plan({.gpu_bytes = 23 * kGib}).gpu_bytes());
  EXPECT_EQ(plan({.cap_bytes = 90 * kGib}).gpu_bytes(), plan({}).gpu_bytes());
  EXPECT_TRUE(test::says(refusal({.cap_bytes = 16 * kGib}), "no room for experts"));
}

// 64 GiB of copies; 2 GiB and a 32nd of what is available are left alone, beside what else the
// program takes.
TEST(ExpertMemory, HostMemoryIsWhatOthersLeave) {
  EXPECT_EQ(plan({}, 60 * kGib, 69 * kGib).homes(), 4 * 64);
  EXPECT_LT(plan({}, 60 * kGib, 68 * kGib).homes(), 4 * 64);
  EXPECT_LT(plan({.other_host_bytes = kGib}, 60 * kGib, 69 * kGib).homes(), 4 * 64);
  EXPECT_LT(plan({.host_bytes = 50 * kGib}).host_bytes(), 50 * kGib + 1);
  EXPECT_TRUE(test::says(refusal({.host_bytes = 50 * kGib}, 53 * kGib),
                         "50.00 GiB of host memory for experts (--host-memory)"));
}

// For benchmarks: all experts have a copy, in as much memory as there is.
TEST(ExpertMemory, CopiesMayShareMemory) {
  const ExpertPlaces places = plan({.host_bytes = 20 * kGib, .share_copies = true}, 26 * kGib);
  EXPECT_EQ(places.homes(), 4 * 64);
  EXPECT_EQ(places.host_bytes(), 20 * kGib);
  EXPECT_EQ(plan({.share_copies = true}).host_bytes(), 64 * kGib);
}

}  // namespace
}  // namespace dsv4
