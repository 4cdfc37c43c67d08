// How long a step takes, from the steps before: seconds = a + b * tokens, fitted by least squares
// in which a step counts half as much after 64 more. Says how many tokens of prompts a step may
// take so that the requests that decode get their next tokens in time (docs/spec/serving.md 4.2).
//
// The time of a device jumps where it takes other kernels: an H200 from 44 to 65 ms at 65 tokens of
// V4-Flash. A line between the two sides of a jump goes on asking for sizes just above it. So sizes
// in a range between two powers of two whose latest two steps took much longer than asked for are
// left out for a while; then one more that does is enough.

#pragma once

#include <cstdint>

namespace dsv4 {

class StepTime {
 public:
  // A step of so many tokens, those that decode included, took so long.
  void observe(int64_t tokens, double seconds);
  // A step of so many tokens, of which `rows` had logits that no new token is drawn from, took so
  // long: what it took beyond expected(tokens) is those rows' cost.
  void observe_rows(int64_t tokens, int64_t rows, double seconds);
  // The most such rows, each of a token of its own, beside `tokens` others, that are expected to
  // take at most so long, from `least` to `most`; `least` before the first ones.
  int64_t rows_within(double seconds, int64_t tokens, int64_t least, int64_t most) const;
  // Seconds of a step of so many tokens; 0 before the first step.
  double expected(int64_t tokens) const;
  // The most tokens of a step that is expected to take at most so long, at least `least`: prompts
  // must get on where even that takes longer. `most` before the first step. At most twice as many
  // as a recent step had: a line through steps of one and two tokens says nothing of 500.
  int64_t tokens_within(double seconds, int64_t least, int64_t most) const;
  // As tokens_within() where only steps with prompts are observed, and those of few tokens take
  // nearly as long as those of many: `most` if even `least` tokens are expected to take longer,
  // since small pieces would take that time again and again. `least` before the first step.
  int64_t piece_within(double seconds, int64_t least, int64_t most) const;

 private:
  struct Line {
    double a = 0, b = 0;
  };
  Line fit() const;
  // Steps of 2^(i - 1) + 1 to 2^i tokens, range i.
  struct Range {
    double latest = 0, before = 0;  // seconds of the latest two
    int64_t at = -1;                // number of the latest; below 0: none
  };
  static constexpr int kRanges = 32;
  static int range_of(int64_t tokens);
  bool takes_longer(int range, double seconds) const;

  Range ranges_[kRanges];
  int64_t steps_ = 0;
  double largest_ = 0;       // tokens of a step, decayed
  double row_seconds_ = -1;  // of one such row beside its token; below 0: none yet
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // sums over the steps, decayed
};

}  // namespace dsv4
