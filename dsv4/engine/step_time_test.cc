#include "dsv4/engine/step_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

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

// Seconds of a step that takes other kernels from 65 tokens on.
double with_a_jump(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return tokens <= 64 ? 0.020 + 0.024 * n / 64 : 0.060 + 0.04e-3 * n;
}

TEST(StepTime, StaysBelowAJump) {
  StepTime time;
  for (int i = 0; i < 20; ++i) time.observe(32, with_a_jump(32));  // answers alone
  int above = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t tokens = time.tokens_within(0.050, 64, 2048);
    above += tokens > 64;
    time.observe(tokens, with_a_jump(tokens));
  }
  EXPECT_LE(above, 10) << "one in a hundred";
  EXPECT_GE(above, 3) << "whether it is still there";
}

// Time that grows less with every token, and with the steps.
TEST(StepTime, LeavesOutNoSizesWithoutAJump) {
  StepTime time;
  double share = 0;
  constexpr int kSteps = 1000;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t tokens = time.tokens_within(0.1, 64, 8192);
    const double seconds =
        (0.02 + 2.5e-3 * std::sqrt(static_cast<double>(tokens))) * (1 + 1e-4 * i);
    time.observe(tokens, seconds);
    if (i >= 50) share += seconds / 0.1 / (kSteps - 50);
  }
  EXPECT_NEAR(share, 1, 0.05);
}

// One step in a hundred takes half as long again, for reasons of its own.
TEST(StepTime, ASlowStepLeavesOutNothing) {
  Rng rng(2);
  StepTime time;
  double tokens = 0;
  constexpr int kSteps = 4000;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t now = time.tokens_within(0.1, 64, 8192);
    const double seconds = 0.02 + 0.25e-3 * static_cast<double>(now);
    time.observe(now, rng.below(100) == 0 ? 1.5 * seconds : seconds);
    if (i >= 100) tokens += static_cast<double>(now) / (kSteps - 100);
  }
  EXPECT_NEAR(tokens, 0.08 / 0.25e-3, 0.1 * 0.08 / 0.25e-3);
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

// With experts in host memory: 0.04 s for a token, 0.8 for 33 and 1.5 for 8,192.
double with_experts_outside(int64_t tokens) {
  return tokens == 1 ? 0.04 : 0.8 + (1.5 - 0.8) * static_cast<double>(tokens - 33) / (8192 - 33);
}

// Steps that a prompt takes beside a request that decodes.
int steps_of_prompt(StepTime& time, int64_t prompt, int64_t most) {
  int steps = 0;
  for (int64_t left = prompt; left > 0; ++steps) {
    const int64_t piece = std::min({left, time.piece_within(0.1, 32, most), most - 1});
    left -= piece;
    time.observe(piece + 1, with_experts_outside(piece + 1));
  }
  return steps;
}

TEST(StepTime, TakesPromptsAtOnceWherePiecesTakeAsLong) {
  StepTime time;
  EXPECT_EQ(time.piece_within(0.1, 32, 8192), 32) << "nothing is known";
  EXPECT_EQ(steps_of_prompt(time, 8192, 8192), 2) << "a small one, and then all";
  for (int i = 0; i < 300; ++i) EXPECT_LE(steps_of_prompt(time, 4000 + 13 * (i % 300), 8192), 2);
  EXPECT_EQ(steps_of_prompt(time, 100, 8192), 1);
  // After a prompt alone, whose last chunk was large.
  StepTime alone;
  alone.observe(8192, with_experts_outside(8192));
  EXPECT_LE(steps_of_prompt(alone, 8192, 8192), 2);
}

TEST(StepTime, KeepsTheTimeWherePiecesDo) {
  StepTime time;
  for (const int64_t tokens : {33, 65, 129, 400}) time.observe(tokens, 0.03 + 0.0002 * tokens);
  EXPECT_NEAR(static_cast<double>(time.piece_within(0.1, 32, 8192)), 350, 2);
  EXPECT_EQ(time.piece_within(0.01, 32, 8192), 8192);
  EXPECT_EQ(time.piece_within(0.01, 32, 500), 500);
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
