// Streams of choices of experts, as routers may make them.

#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "dsv4/base/rng.h"

namespace dsv4::test {

// Popularity 1 / rank^skew (0: all equal) over experts in random order; a share of a token's
// experts is taken from the token before.
class Choices {
 public:
  Choices(Rng& rng, int experts, double skew, double repeats)
      : rng_(rng), order_(static_cast<size_t>(experts)), repeats_(repeats) {
    std::iota(order_.begin(), order_.end(), 0);
    for (size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[static_cast<size_t>(rng.below(static_cast<int64_t>(i)))]);
    double sum = 0;
    for (int rank = 1; rank <= experts; ++rank) ends_.push_back(sum += std::pow(rank, -skew));
  }

  // [tokens * k], distinct in each token.
  std::vector<int32_t> step(int tokens, int k) {
    std::vector<int32_t> ids;
    for (int t = 0; t < tokens; ++t) {
      std::vector<int32_t> token;
      for (const int32_t e : before_)
        if (std::ssize(token) < k && rng_.uniform() < repeats_) token.push_back(e);
      while (std::ssize(token) < k) {
        const int32_t e = draw();
        if (std::ranges::find(token, e) == token.end()) token.push_back(e);
      }
      ids.insert(ids.end(), token.begin(), token.end());
      before_ = token;
    }
    return ids;
  }

 private:
  int32_t draw() {
    const auto at = std::ranges::upper_bound(ends_, rng_.uniform() * ends_.back());
    return order_[std::min(static_cast<size_t>(at - ends_.begin()), order_.size() - 1)];
  }

  Rng& rng_;
  std::vector<int32_t> order_;
  std::vector<double> ends_;  // of popularity, summed
  double repeats_;
  std::vector<int32_t> before_;
};

}  // namespace dsv4::test
