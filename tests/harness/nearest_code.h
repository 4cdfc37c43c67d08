// The slow definition of "round to nearest, ties to the even code": a sorted list of what the codes
// mean, and a search. Tests of the encoders compare with it.

#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "dsv4/base/rng.h"

namespace dsv4::test {

class NearestCode {
 public:
  // magnitude(c) of codes 0 .. last, ascending. Anything beyond the last one becomes the last one;
  // for IEEE overflow let the last code be infinity, with the value that would follow.
  NearestCode(uint32_t last, const std::function<double(uint32_t)>& magnitude) {
    for (uint32_t c = 0; c <= last; ++c) values_.push_back(magnitude(c));
  }

  uint32_t operator()(double magnitude) const {
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return static_cast<uint32_t>(values_.size() - 1);
    const auto high = static_cast<uint32_t>(above - values_.begin());
    if (*above == magnitude) return high;
    const uint32_t low = high - 1;
    const double down = magnitude - values_[low], up = values_[high] - magnitude;
    if (down == up) return low % 2 == 0 ? low : high;
    return down < up ? low : high;
  }

  // Floats where rounding goes wrong first: every value, every midpoint between neighbors, each
  // also one ulp lower and higher.
  std::vector<float> edges() const {
    std::vector<float> floats;
    const auto add = [&](double v) {
      const auto f = static_cast<float>(v);
      floats.push_back(f);
      floats.push_back(std::nextafter(f, 0.f));
      floats.push_back(std::nextafter(f, std::numeric_limits<float>::infinity()));
    };
    for (size_t c = 0; c < values_.size(); ++c) {
      add(values_[c]);
      if (c > 0) add((values_[c - 1] + values_[c]) / 2);
    }
    return floats;
  }

 private:
  std::vector<double> values_;
};

// Floats of `count` random bit patterns: every exponent alike, subnormals, infinities and NaN too.
template <class Visit>
void for_random_floats(int count, uint64_t seed, const Visit& visit) {
  Rng rng(seed);
  for (int i = 0; i < count; ++i) visit(std::bit_cast<float>(static_cast<uint32_t>(rng.bits())));
}

}  // namespace dsv4::test
