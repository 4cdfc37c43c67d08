#include "dsv4/engine/draft_policy.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace dsv4 {

void RoundTimes::observe(int64_t tokens, double seconds) {
  constexpr int64_t kMemory = 16;  // steps
  constexpr double kMostAtOnce =
      1.5;  // a step that was interrupted counts as so many times the mean
  Mean& mean = means_[tokens];
  if (mean.count > 2) seconds = std::min(seconds, kMostAtOnce * mean.seconds);
  mean.count = std::min(mean.count + 1, kMemory);
  mean.seconds += (seconds - mean.seconds) / static_cast<double>(mean.count);
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

double DraftPolicy::gain(std::span<const Chances> requests, int64_t k) const {
  int64_t tokens = 0;
  double given = 0;
  for (const Chances& chances : requests) {
    const int64_t drafts = std::min(k, std::ssize(chances));
    tokens += 1 + drafts;
    double all_held = 1;
    given += 1;
    for (int64_t i = 0; i < drafts; ++i) given += all_held *= chances[static_cast<size_t>(i)];
  }
  const double seconds = times_.expected(tokens);
  return seconds > 0 ? given / seconds : 0;
}

int64_t DraftPolicy::choose(std::span<const Chances> requests) {
  constexpr double kBetter = 1.03;  // than fewer drafts, so that noise adds none
  constexpr int64_t kTryAgain = 128;
  int64_t most = 0;
  for (const Chances& chances : requests) most = std::max(most, std::ssize(chances));
  if (most == 0) return 0;
  int64_t best = std::min(current_, most);
  double best_gain = gain(requests, best);
  for (int64_t k = 0; k <= most; ++k) {
    const double one = gain(requests, k) / (k > best ? kBetter : 1);
    if (one > best_gain) best = k, best_gain = gain(requests, k);
  }
  // Now and then the other way, so that neither time is an old one.
  const bool plain = best == 0;
  same_ = plain == (current_ == 0) ? same_ + 1 : 0;
  current_ = best;
  if (same_ >= kTryAgain) return same_ = 0, plain ? 1 : 0;
  return times_.measured(std::ssize(requests)) ? best : 0;
}

}  // namespace dsv4
