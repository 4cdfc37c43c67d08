// Counter-based random numbers: value = f(seed, counter), so a stream needs no state, can
// start at any counter, and gives the same bits on host and device.
//
// The mixer is SplitMix64's finalizer (Steele, Lea, Flood 2014) applied to seed and counter.

#pragma once

#include <cmath>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

DSV4_HD constexpr uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

DSV4_HD constexpr uint64_t random_bits(uint64_t seed, uint64_t counter) {
  return mix64(mix64(seed + 0x9e3779b97f4a7c15ull) + (counter + 1) * 0x9e3779b97f4a7c15ull);
}

// Uniform in [0, 1): 53 random bits, so every value is exact in double.
DSV4_HD constexpr double random_uniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(random_bits(seed, counter) >> 11) * 0x1p-53;
}

// A stream for tests and tools: it draws counters 0, 1, 2, ... of one seed.
class Rng {
 public:
  explicit Rng(uint64_t seed) : seed_(seed) {}

  uint64_t bits() { return random_bits(seed_, counter_++); }
  double uniform() { return random_uniform(seed_, counter_++); }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  int64_t below(int64_t n) { return static_cast<int64_t>(uniform() * static_cast<double>(n)); }
  // Standard normal by Box-Muller.
  double normal() {
    const double u = 1.0 - uniform();  // (0, 1]
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * uniform());
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
};

}  // namespace dsv4
