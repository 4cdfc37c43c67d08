#include "dsv4/ops/sparse_mla/sm90_fp8_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/bits.h"

namespace dsv4::sm90_fp8 {
namespace {

constexpr int kProcessors = 132;

// Every slot is in exactly one chunk, every head in one block.
void expect_whole(const Plan& plan, int slots) {
  EXPECT_TRUE(plan.heads == 8 || plan.heads == 16 || plan.heads == 32 || plan.heads == 64);
  EXPECT_GT(plan.chunk, 0);
  EXPECT_EQ(plan.chunk % 64, 0);
  EXPECT_GE(plan.chunks, 1);
  EXPECT_LE(plan.chunks, kMaxChunks);
  EXPECT_TRUE(parts_fit(plan.heads, plan.chunks));
  EXPECT_GE(int64_t{plan.chunk} * plan.chunks, slots);
  EXPECT_LT(int64_t{plan.chunk} * (plan.chunks - 1), std::max(slots, 1)) << "an empty chunk";
}

TEST(Sm90Fp8Plan, CutsEveryCallWhole) {
  for (const int64_t queries : {1, 2, 7, 32, 128, 133, 4096}) {
    for (const int heads : {1, 8, 9, 20, 64, 100, 128}) {
      for (const int slots : {0, 1, 64, 65, 640, 1152, 2048, 9000, 100000}) {
        expect_whole(plan_call(queries, heads, slots, kProcessors), slots);
      }
    }
  }
}

// Nothing is computed twice where the GPU is full, and it is not left empty where it is not.
TEST(Sm90Fp8Plan, FillsTheGpu) {
  const Plan full = plan_call(256, 64, 640, kProcessors), one = plan_call(1, 64, 640, kProcessors);
  EXPECT_EQ(full.heads, 64);
  EXPECT_EQ(full.chunks, 1);
  EXPECT_GE(64 / one.heads * one.chunks, 20);
  for (const int slots : {1, 64, 128}) {
    EXPECT_LE(plan_call(1, 64, slots, kProcessors).heads, 8) << slots;
    EXPECT_LE(plan_call(8, 64, slots, kProcessors).heads, 16) << slots;
  }
}

// The fastest of those measured on an H100, or within 2 % of it (docs/kernels/sparse_mla.md).
TEST(Sm90Fp8Plan, ChoosesTheMeasuredBest) {
  struct Best {
    int64_t queries;
    int heads, slots;
    Plan plan;
  };
  for (const Best& best : {Best{1, 64, 640, {8, 128, 5}}, Best{8, 64, 640, {32, 128, 5}},
                           Best{16, 64, 640, {32, 256, 3}}, Best{32, 64, 640, {32, 320, 2}},
                           Best{64, 64, 640, {64, 320, 2}}, Best{128, 64, 640, {64, 640, 1}},
                           Best{16, 128, 1152, {32, 576, 2}}, Best{32, 128, 1152, {64, 576, 2}},
                           Best{64, 128, 1152, {64, 1152, 1}}, Best{32, 8, 640, {8, 256, 3}},
                           Best{32, 16, 640, {16, 256, 3}}, Best{32, 32, 640, {32, 256, 3}},
                           Best{64, 64, 128, {32, 128, 1}}, Best{64, 64, 2176, {64, 1088, 2}}}) {
    SCOPED_TRACE(fmt::format("{} queries of {} heads", best.queries, best.heads));
    const Plan plan = plan_call(best.queries, best.heads, best.slots, kProcessors);
    EXPECT_EQ(plan.heads, best.plan.heads);
    EXPECT_EQ(plan.chunk, best.plan.chunk);
    EXPECT_EQ(plan.chunks, best.plan.chunks);
  }
}

// Few heads do not pay for 64.
TEST(Sm90Fp8Plan, BlocksOfFewHeads) {
  EXPECT_EQ(plan_call(32, 8, 640, kProcessors).heads, 8);
  EXPECT_LE(plan_call(32, 16, 640, kProcessors).heads, 16);
  EXPECT_EQ(plan_invariant(5, 640).heads, 8);
  EXPECT_EQ(plan_invariant(20, 640).heads, 32);
  EXPECT_EQ(plan_invariant(128, 640).heads, 64);
}

// Chunks begin at the same positions for every length of the list.
TEST(Sm90Fp8Plan, InvariantChunksDoNotMove) {
  for (const int slots : {1, 640, 2048, 2049, 16384}) {
    const Plan plan = plan_invariant(64, slots);
    EXPECT_EQ(plan.chunk, kInvariantChunk);
    EXPECT_GE(plan.chunks, ceil_div(slots, kInvariantChunk));
    EXPECT_TRUE(parts_fit(plan.heads, plan.chunks));
  }
}

}  // namespace
}  // namespace dsv4::sm90_fp8
