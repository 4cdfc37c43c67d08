// How many drafts pay (docs/speculation.md): the most tokens per second, from what steps of so many
// tokens have taken and from how often drafts have held. No token depends on it, so it may look at
// clocks.
//
//   gain(k) = sum over the requests of E(min(k, their drafts)) / (S(tokens of the step) + D)
//   E(n)    = 1 + a1 + a1 a2 + ..     tokens that a round of n drafts gives; ai: draft i holds
//   S, D    seconds of the step, and of the passes of a drafter, 0 where it guesses for no request
//
// The best of all k with the drafter and without it is taken. k = 0 is a step without drafts, so
// that a step is never expected to be slower than without.

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
  // A step went by in which nothing could be observed: what was counted says less of the next one.
  void forget();
  double rate() const { return (held_ + kWeight * prior_) / (tried_ + kWeight); }

 private:
  static constexpr double kWeight = 4;  // of the prior, in trials
  double prior_, held_ = 0, tried_ = 0;
};

// What a drafter says of its drafts, scaled so that on average as many hold as it says.
class CalibratedChance {
 public:
  void observe(double said, bool held);
  double of(double said) const;

 private:
  // Decayed sums over a prior of drafts that hold as often as is said.
  static constexpr double kPrior = 4;
  double said_ = kPrior, held_ = kPrior;
};

// A request's drafts in their order: the chance that each holds if those before it do.
using DraftChances = std::vector<double>;

// What a request may draft in the next step: what the host knows already, which costs nothing, or
// guesses of a drafter, of which each is a pass.
struct DraftOffer {
  DraftChances own, drafter;

  // Whether the drafter's guesses give more tokens, of k drafts at most.
  bool drafter_gives_more(int64_t k) const;
};

struct DraftChoice {
  int64_t most = 0;      // drafts of a request
  bool drafter = false;  // guesses, for the requests to which it gives more
  bool operator==(const DraftChoice&) const = default;
};

class DraftPolicy {
 public:
  // one_pass: the drafter makes all drafts of a request at once (Drafter::one_pass)
  explicit DraftPolicy(bool one_pass = false) : one_pass_(one_pass) {}
  // The number of own drafts that gives the most tokens per second.
  int64_t most_of(std::span<const DraftOffer> offers) const;
  // For the requests that decode in the next step.
  DraftChoice choose(std::span<const DraftOffer> offers);
  // A step without prompts took so long, without the drafter.
  void observe(int64_t tokens, double seconds) { times_.observe(tokens, seconds); }
  // What a drafter does for a step: the most drafts of a request, all drafts, and for how many
  // requests.
  struct Drafting {
    int64_t guesses = 0, rows = 0, requests = 0;
  };
  void observe_drafter(const Drafting& drafting, double seconds);

 private:
  // Passes, and rows of each.
  struct Passes {
    int64_t count = 0, rows = 0;
  };
  Passes passes_of(const Drafting& drafting) const;
  double gain(std::span<const DraftOffer> offers, const DraftChoice& choice) const;
  DraftChoice best_of(std::span<const DraftOffer> offers, const DraftChoice& most) const;
  DraftChoice trial(std::span<const DraftOffer> offers, int64_t most) const;

  const bool one_pass_;
  RoundTimes times_, pass_times_;  // of steps by tokens, of a drafter's pass by rows
  DraftChoice current_{.most = 1};
  int64_t same_ = 0;         // steps that all had drafts, or all had none, though there were some
  int64_t trials_ = 0;       // first steps in which the drafter guessed, to know what that takes
  int64_t drafterless_ = 0;  // steps in which a drafter could have guessed, and did not
};

}  // namespace dsv4
