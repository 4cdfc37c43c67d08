// How many drafts pay (docs/speculation.md): the most tokens per second, from what steps of so many
// tokens have taken and from how often drafts have held. No token depends on it, so it may look at
// clocks.
//
//   gain(k) = sum over the requests of E(min(k, their drafts)) / seconds(tokens of the step)
//   E(n)    = 1 + a1 + a1 a2 + ..     tokens that a round of n drafts gives; ai: draft i holds
//
// k = 0 is a step without drafts, so that a step is never expected to be slower than without.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace dsv4 {

// What decode steps take, by their tokens.
class RoundTimes {
 public:
  void observe(int64_t tokens, double seconds);
  // Between two sizes that have been measured, a line; beyond them the line through the nearest
  // two, and at least what a smaller step takes. Of a single size everything takes the same, so
  // that a second one is tried. 0: nothing is known.
  double expected(int64_t tokens) const;
  bool measured(int64_t tokens) const { return means_.contains(tokens); }

 private:
  struct Mean {
    double seconds = 0;
    int64_t count = 0;
  };
  std::map<int64_t, Mean> means_;  // by tokens
};

// How often drafts hold: decayed counts over a prior.
class HoldRate {
 public:
  explicit HoldRate(double prior) : prior_(prior) {}
  void observe(bool held);
  double rate() const { return (held_ + kWeight * prior_) / (tried_ + kWeight); }

 private:
  static constexpr double kWeight = 4;  // of the prior, in trials
  double prior_, held_ = 0, tried_ = 0;
};

class DraftPolicy {
 public:
  // A request's drafts in their order: the chance that each holds if those before it do.
  using Chances = std::vector<double>;

  // The most drafts of a request in the next step, of the requests that decode.
  int64_t choose(std::span<const Chances> requests);
  // A step without prompts took so long.
  void observe(int64_t tokens, double seconds) { times_.observe(tokens, seconds); }

 private:
  double gain(std::span<const Chances> requests, int64_t k) const;

  RoundTimes times_;
  int64_t current_ = 1;
  int64_t same_ = 0;  // steps that all had drafts, or all had none, though there were some
};

}  // namespace dsv4
