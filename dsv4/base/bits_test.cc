#include "dsv4/base/bits.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

static_assert(ceil_div(0, 128) == 0 && ceil_div(1, 128) == 1 && ceil_div(128, 128) == 1);
static_assert(ceil_div(129, 128) == 2 && ceil_div(int64_t{1} << 40, 3) == 366503875926);
static_assert(align_up(0, 64) == 0 && align_up(1, 64) == 64 && align_up(64, 64) == 64);
static_assert(align_up(37'376, 576) == 37'440, "not only powers of two");

TEST(Bits, PowersOfTwo) {
  int count = 0;
  for (int64_t a = -100; a <= 1024; ++a) count += is_pow2(a) ? 1 : 0;
  EXPECT_EQ(count, 11);  // 1, 2, 4, .., 1024; neither 0 nor a negative number
  EXPECT_TRUE(is_pow2(int64_t{1} << 62));
}

}  // namespace
}  // namespace dsv4
