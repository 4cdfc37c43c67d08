#include "dsv4/base/divisor.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

constexpr uint32_t kLargest = (uint32_t{1} << 31) - 1;

void expect_exact(const Divisor& by, uint32_t n) {
  ASSERT_EQ(by.divide(n), n / by.divisor) << n << " / " << by.divisor;
}

// Quotients change at multiples of the divisor: tests both sides of the first, the last and random
// multiples.
TEST(Divisor, ExactAroundMultiples) {
  Rng rng(1);
  for (int i = 0; i < 2000; ++i) {
    const auto divisor =
        static_cast<uint32_t>(i < 300   ? i + 1
                              : i < 400 ? kLargest - (i - 300)
                                        : 1 + rng.below(int64_t{1} << (1 + i % 31)));
    const Divisor by(divisor);
    for (const uint32_t quotient : {uint32_t{1}, kLargest / divisor,
                                    static_cast<uint32_t>(rng.below(kLargest / divisor + 1))}) {
      const uint32_t multiple = quotient * divisor;
      expect_exact(by, multiple);
      if (multiple > 0) expect_exact(by, multiple - 1);
    }
    expect_exact(by, 0);
    expect_exact(by, kLargest);
  }
}

TEST(Divisor, DefaultsToOne) {
  expect_exact(Divisor(), 12345);
}

}  // namespace
}  // namespace dsv4
