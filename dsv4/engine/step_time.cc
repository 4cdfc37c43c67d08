#include "dsv4/engine/step_time.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace dsv4 {
namespace {

const double kDecay = std::exp2(-1.0 / 64);

}  // namespace

int StepTime::range_of(int64_t tokens) {
  return std::min(
      kRanges - 1,
      static_cast<int>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(tokens, 1) - 1))));
}

bool StepTime::takes_longer(int range, double seconds) const {
  constexpr double kMuch = 1.2;
  constexpr int64_t kWhile = 128;  // steps
  const Range& one = ranges_[range];
  return one.at >= 0 && steps_ - one.at < kWhile &&
         std::min(one.latest, one.before) > kMuch * seconds;
}

void StepTime::observe(int64_t tokens, double seconds) {
  Range& range = ranges_[range_of(tokens)];
  range = {.latest = seconds, .before = range.latest, .at = steps_++};
  const auto x = static_cast<double>(tokens);
  const auto add = [](double& sum, double value) { sum = kDecay * sum + value; };
  largest_ = std::max(x, kDecay * largest_);
  add(n_, 1);
  add(x_, x);
  add(y_, seconds);
  add(xx_, x * x);
  add(xy_, x * seconds);
}

// Steps of one size only say nothing of the intercept: then the line goes through the origin, which
// takes the time of a token for longer than it is.
StepTime::Line StepTime::fit() const {
  const double spread = n_ * xx_ - x_ * x_, slope = n_ * xy_ - x_ * y_;
  if (spread > 1e-6 * n_ * xx_ && slope > 0) {
    const double b = slope / spread, a = (y_ - b * x_) / n_;
    if (a >= 0) return {a, b};
  }
  return {0, xy_ / xx_};
}

void StepTime::observe_rows(int64_t tokens, int64_t rows, double seconds) {
  constexpr double kNew = 0.25;  // of the latest step
  const double one = std::max(0.0, seconds - expected(tokens)) / static_cast<double>(rows);
  row_seconds_ = row_seconds_ < 0 ? one : (1 - kNew) * row_seconds_ + kNew * one;
}

int64_t StepTime::rows_within(double seconds, int64_t tokens, int64_t least, int64_t most) const {
  if (row_seconds_ < 0) return std::min(least, most);
  const double b = n_ == 0 ? 0 : fit().b;
  const double rows = (seconds - expected(tokens)) / std::max(b + row_seconds_, 1e-12);
  if (rows >= static_cast<double>(most)) return most;
  return std::max(std::min(least, most), static_cast<int64_t>(std::max(rows, 0.0)));
}

double StepTime::expected(int64_t tokens) const {
  if (n_ == 0) return 0;
  const Line line = fit();
  return line.a + line.b * static_cast<double>(tokens);
}

int64_t StepTime::piece_within(double seconds, int64_t least, int64_t most) const {
  if (n_ == 0) return std::min(least, most);
  return expected(std::min(least, most)) > seconds ? most : tokens_within(seconds, least, most);
}

int64_t StepTime::tokens_within(double seconds, int64_t least, int64_t most) const {
  if (n_ == 0) return most;
  most = std::min(most, std::max(least, static_cast<int64_t>(2 * largest_)));
  const Line line = fit();
  const double tokens = (seconds - line.a) / std::max(line.b, 1e-12);
  least = std::min(least, most);
  int64_t within =
      tokens >= static_cast<double>(most) ? most : static_cast<int64_t>(std::max(tokens, 0.0));
  for (int range = range_of(within); range > 0 && takes_longer(range, seconds); --range)
    within = int64_t{1} << (range - 1);
  return std::max(least, within);
}

}  // namespace dsv4
