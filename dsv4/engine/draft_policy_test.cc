// The policy in simulated time: steps take what a table says, drafts hold by chance.

#include "dsv4/engine/draft_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

using Seconds = std::function<double(int64_t tokens)>;

// Seconds for `tokens` tokens of each of b answers, whose requests find drafts with chance `found`,
// of which each holds with chance `holds`.
struct Load {
  int64_t answers = 1;
  double found = 1, holds = 0.5;
};

double simulate(const Load& load, const Seconds& seconds, bool speculate) {
  Rng rng(7);
  DraftPolicy policy;
  std::vector<HoldRate> rates(static_cast<size_t>(load.answers), HoldRate(0.5));
  double time = 0, tokens = 0;
  while (tokens < 3000.0 * static_cast<double>(load.answers)) {
    std::vector<DraftPolicy::Chances> chances(rates.size());
    for (size_t j = 0; j < rates.size() && speculate; ++j)
      if (rng.uniform() < load.found) chances[j].assign(7, rates[j].rate());
    const int64_t k = policy.choose(chances);
    int64_t computed = 0;
    for (size_t j = 0; j < rates.size(); ++j) {
      const int64_t drafts = std::min(k, std::ssize(chances[j]));
      computed += 1 + drafts;
      tokens += 1;
      // One draft more than is computed is compared with the token.
      for (int64_t i = 0; i <= drafts && i < std::ssize(chances[j]); ++i) {
        const bool held = rng.uniform() < load.holds;
        rates[j].observe(held);
        if (!held) break;
        tokens += i < drafts ? 1 : 0;
      }
    }
    const double spent = seconds(computed) * (0.95 + 0.1 * rng.uniform());
    policy.observe(computed, spent);
    time += spent;
  }
  return time / tokens;
}

// Milliseconds that were measured: the bundled model on two cores, and a GPU (docs/decode-step.md).
double cpu(int64_t tokens) {
  constexpr double kTable[] = {0, 2.43, 3.88, 4.66, 5.62, 5.97, 6.32, 6.66, 7.01};
  return tokens <= 8 ? kTable[tokens] : 7.01 + 0.35 * static_cast<double>(tokens - 8);
}
double gpu(int64_t tokens) {
  constexpr double kTable[] = {0, 4.30, 5.39, 6.12, 6.86, 7.45, 8.04, 8.62, 9.21};
  return tokens <= 8 ? kTable[tokens] : 9.21 + 0.48 * static_cast<double>(tokens - 8);
}
double linear(int64_t tokens) {
  return static_cast<double>(tokens);
}

TEST(DraftPolicy, IsNeverSlowerThanWithout) {
  for (const Seconds& seconds : {Seconds(cpu), Seconds(gpu), Seconds(linear)}) {
    for (const int64_t answers : {1, 3, 16}) {
      for (const double found : {0.1, 1.0}) {
        for (const double holds : {0.0, 0.2, 0.5, 0.7, 0.95}) {
          const Load load{.answers = answers, .found = found, .holds = holds};
          EXPECT_LT(simulate(load, seconds, true), 1.015 * simulate(load, seconds, false))
              << answers << " answers, found " << found << ", holds " << holds;
        }
      }
    }
  }
}

// Within some percent of the best fixed number.
TEST(DraftPolicy, FindsTheBestNumber) {
  for (const Seconds& seconds : {Seconds(cpu), Seconds(gpu)}) {
    for (const double holds : {0.6, 0.8, 0.95}) {
      double best = seconds(1);
      double given = 1, all_held = 1;
      for (int64_t k = 1; k <= 7; ++k) {
        given += all_held *= holds;
        best = std::min(best, seconds(1 + k) / given);
      }
      EXPECT_LT(simulate({.holds = holds}, seconds, true), 1.06 * best) << holds;
    }
  }
}

TEST(RoundTimes, IsALineBetweenAndBeyondWhatIsKnown) {
  RoundTimes times;
  EXPECT_EQ(times.expected(4), 0);
  times.observe(2, 3);
  EXPECT_EQ(times.expected(1), 3);
  EXPECT_EQ(times.expected(9), 3);
  times.observe(6, 5);
  EXPECT_EQ(times.expected(4), 4);
  EXPECT_EQ(times.expected(8), 6);
  EXPECT_EQ(times.expected(1), 2.5);
}

// One slow step says little.
TEST(RoundTimes, OneInterruptedStepIsNotTheMean) {
  RoundTimes times;
  for (int i = 0; i < 50; ++i) times.observe(1, 1);
  times.observe(1, 100);
  EXPECT_LT(times.expected(1), 1.05);
}

}  // namespace
}  // namespace dsv4
