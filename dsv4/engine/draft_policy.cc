#include "dsv4/engine/draft_policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "dsv4/base/bits.h"

namespace dsv4 {

void RoundTimes::observe(int64_t tokens, double seconds) {
  constexpr int64_t kMemory = 16, kFewSteps = 4;
  constexpr double kMostAtOnce =
      1.5;  // a step that was interrupted counts as so many times the mean
  Mean& mean = means_[tokens];
  if (mean.count > 0) seconds = std::min(seconds, kMostAtOnce * mean.seconds);
  mean.count = std::min(mean.count + 1, kMemory);
  // What interrupts a step makes it longer, so of the first few the shortest says most.
  if (mean.count > 1 && mean.count <= kFewSteps) {
    mean.seconds = std::min(mean.seconds, seconds);
  } else {
    mean.seconds += (seconds - mean.seconds) / static_cast<double>(mean.count);
  }
}

double RoundTimes::expected(int64_t tokens) const {
  if (means_.empty()) return 0;
  auto above = means_.lower_bound(tokens);
  if (above != means_.end() && above->first == tokens) return above->second.seconds;
  if (means_.size() == 1) return means_.begin()->second.seconds;
  if (above == means_.end()) --above;
  if (above == means_.begin()) ++above;
  const auto below = std::prev(above);
  const double a = below->second.seconds, b = above->second.seconds;
  const double slope = std::max(0.0, (b - a) / static_cast<double>(above->first - below->first));
  return std::max(a + slope * static_cast<double>(tokens - below->first), 0.25 * a);
}

void HoldRate::observe(bool held) {
  static const double kDecay = std::exp2(-1.0 / 32);  // half as much after 32 more
  held_ = kDecay * held_ + (held ? 1 : 0);
  tried_ = kDecay * tried_ + 1;
}

void HoldRate::forget() {
  static const double kDecay = std::exp2(-1.0 / 128);
  held_ *= kDecay;
  tried_ *= kDecay;
}

namespace {

// The tokens that a round of these drafts gives, of k at most.
double expected_tokens(const DraftChances& chances, int64_t k) {
  double given = 1, all_held = 1;
  for (int64_t i = 0; i < std::min(k, std::ssize(chances)); ++i)
    given += all_held *= chances[static_cast<size_t>(i)];
  return given;
}

}  // namespace

bool DraftOffer::drafter_gives_more(int64_t k) const {
  return expected_tokens(drafter, k) > expected_tokens(own, k);
}

void CalibratedChance::observe(double said, bool held) {
  static const double kDecay = std::exp2(-1.0 / 64);  // half as much after 64 more
  said_ = kDecay * said_ + said;
  held_ = kDecay * held_ + (held ? 1 : 0);
}

double CalibratedChance::of(double said) const {
  return std::clamp(said * held_ / said_, 0.0, 1.0);
}

DraftPolicy::Passes DraftPolicy::passes_of(const Drafting& drafting) const {
  if (drafting.guesses == 0) return {};
  if (one_pass_) return {1, drafting.requests};
  return {drafting.guesses, ceil_div(drafting.rows, drafting.guesses)};
}

void DraftPolicy::observe_drafter(const Drafting& drafting, double seconds) {
  const Passes passes = passes_of(drafting);
  if (passes.count > 0)
    pass_times_.observe(passes.rows, seconds / static_cast<double>(passes.count));
}

int64_t DraftPolicy::most_of(std::span<const DraftOffer> offers) const {
  int64_t drafts = 0;
  for (const DraftOffer& offer : offers) drafts = std::max(drafts, std::ssize(offer.own));
  DraftChoice best{.most = drafts};
  for (int64_t k = drafts - 1; k >= 0; --k)
    if (gain(offers, {.most = k}) > gain(offers, best)) best.most = k;
  return best.most;
}

double DraftPolicy::gain(std::span<const DraftOffer> offers, const DraftChoice& choice) const {
  int64_t tokens = 0;
  Drafting drafting;
  double given = 0;
  for (const DraftOffer& offer : offers) {
    const bool drafter = choice.drafter && offer.drafter_gives_more(choice.most);
    const DraftChances& chances = drafter ? offer.drafter : offer.own;
    const int64_t drafts = std::min(choice.most, std::ssize(chances));
    tokens += 1 + drafts;
    given += expected_tokens(chances, drafts);
    if (!drafter || drafts == 0) continue;
    drafting.guesses = std::max(drafting.guesses, drafts);
    drafting.rows += drafts;
    ++drafting.requests;
  }
  double seconds = times_.expected(tokens);
  const Passes passes = passes_of(drafting);
  if (passes.count > 0)
    seconds += static_cast<double>(passes.count) * pass_times_.expected(passes.rows);
  return seconds > 0 ? given / seconds : 0;
}

// most: of the drafts that there are, and whether a drafter could guess
DraftChoice DraftPolicy::best_of(std::span<const DraftOffer> offers,
                                 const DraftChoice& most) const {
  constexpr double kBetter = 1.02;  // than fewer drafts, or none of a drafter: noise adds none
  DraftChoice best{.most = std::min(current_.most, most.most),
                   .drafter = current_.drafter && most.drafter};
  double best_gain = gain(offers, best);
  for (const bool drafter : {false, true}) {
    if (drafter && !most.drafter) break;
    for (int64_t k = 0; k <= most.most; ++k) {
      const DraftChoice one{.most = k, .drafter = drafter};
      const bool is_more = k > best.most || (drafter && !best.drafter);
      if (gain(offers, one) <= best_gain * (is_more ? kBetter : 1)) continue;
      best = one, best_gain = gain(offers, one);
    }
  }
  return best;
}

// The best that has guesses, whatever else is better.
DraftChoice DraftPolicy::trial(std::span<const DraftOffer> offers, int64_t most) const {
  DraftChoice best{.most = 1, .drafter = true};
  for (int64_t k = 2; k <= most; ++k) {
    const DraftChoice one{.most = k, .drafter = true};
    if (gain(offers, one) > gain(offers, best)) best = one;
  }
  return best;
}

DraftChoice DraftPolicy::choose(std::span<const DraftOffer> offers) {
  constexpr int64_t kTryAgain = 128, kTrials = 4;
  DraftChoice most;
  for (const DraftOffer& offer : offers) {
    most.most = std::max({most.most, std::ssize(offer.own), std::ssize(offer.drafter)});
    most.drafter |= !offer.drafter.empty();
  }
  if (most.most == 0) return {};
  const DraftChoice best = best_of(offers, most);
  // Now and then the other way, so that no time and no chance is an old one.
  const bool plain = best.most == 0;
  same_ = plain == (current_.most == 0) ? same_ + 1 : 0;
  drafterless_ = most.drafter && !best.drafter ? drafterless_ + 1 : 0;
  current_ = best;
  if (!times_.measured(std::ssize(offers))) return {};
  if (most.drafter && trials_ < kTrials) return ++trials_, trial(offers, most.most);
  if (drafterless_ >= kTryAgain) return drafterless_ = 0, DraftChoice{.most = 1, .drafter = true};
  if (same_ >= kTryAgain) return same_ = 0, DraftChoice{.most = plain ? 1 : 0};
  return best;
}

}  // namespace dsv4
