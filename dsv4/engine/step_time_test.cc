#include "dsv4/engine/step_time.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

TEST(StepTime, FindsTheTimeOfAStepAndOfAToken) {
  Rng rng(1);
  StepTime time;
  for (int i = 0; i < 200; ++i) {
    const int64_t tokens = rng.below(3) == 0 ? 1 + rng.below(2000) : 1 + rng.below(32);
    time.observe(tokens, (0.010 + 50e-6 * static_cast<double>(tokens)) * rng.uniform(0.95, 1.05));
  }
  EXPECT_NEAR(time.expected(0), 0.010, 0.002);
  EXPECT_NEAR(time.expected(1000), 0.060, 0.003);
  EXPECT_NEAR(static_cast<double>(time.tokens_within(0.050, 128, 4096)), 800, 60);
  EXPECT_EQ(time.tokens_within(10, 128, 2048), 2048);
  EXPECT_EQ(time.tokens_within(0.001, 128, 4096), 128) << "prompts get on";
  EXPECT_EQ(time.tokens_within(0.001, 128, 100), 100);
}

TEST(StepTime, FollowsAChange) {
  StepTime time;
  for (int i = 0; i < 500; ++i) time.observe(1 + 100 * (i % 7), 0.001 * (1 + 100 * (i % 7)));
  for (int i = 0; i < 500; ++i) time.observe(1 + 100 * (i % 7), 0.002 * (1 + 100 * (i % 7)));
  EXPECT_NEAR(time.expected(100), 0.2, 0.01);
}

TEST(StepTime, OneSizeOfStepsIsEnoughToBeCareful) {
  StepTime time;
  EXPECT_EQ(time.tokens_within(0.1, 128, 512), 512) << "nothing is known";
  for (int i = 0; i < 5; ++i) time.observe(512, 0.4);
  EXPECT_EQ(time.tokens_within(0.2, 16, 512), 256);
}

TEST(StepTime, RowsOfLogitsHaveTheirOwnCost) {
  StepTime time;
  EXPECT_EQ(time.rows_within(1.0, 0, 8, 64), 8) << "nothing is known";
  for (int64_t tokens : {1, 100, 200}) time.observe(tokens, 0.01 + 0.0001 * tokens);
  time.observe_rows(100, 10, 0.01 + 0.0001 * 100 + 10 * 0.002);
  // (0.1 - 0.01 - 0.0001 * 5) / (0.0001 + 0.002) = 42.6
  EXPECT_EQ(time.rows_within(0.1, 5, 8, 64), 42);
  EXPECT_EQ(time.rows_within(0.1, 5, 8, 32), 32);
  EXPECT_EQ(time.rows_within(0.001, 5, 8, 64), 8) << "prompts must get on";
  EXPECT_NEAR(time.expected(100), 0.02, 1e-9) << "a step with rows says nothing of other tokens";
}

// Steps that only decode, with one and two tokens, differ by chance.
TEST(StepTime, DoesNotReachFarBeyondWhatItHasSeen) {
  StepTime time;
  for (int i = 0; i < 100; ++i) time.observe(1 + i % 2, 0.0029 + 0.0001 * (i % 2));
  EXPECT_EQ(time.tokens_within(0.1, 32, 512), 32) << "the line says 512";
  time.observe(32, 0.004);
  EXPECT_EQ(time.tokens_within(0.1, 32, 512), 64);
  time.observe(64, 0.006);
  EXPECT_EQ(time.tokens_within(0.1, 32, 512), 128);
}

}  // namespace
}  // namespace dsv4
