#include "dsv4/formats/state_layout.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

constexpr StateLayout kCsa{4, 512, true}, kCsaKeys{4, 128, true}, kHca{128, 512, false};

// docs/spec/dsv4.md 12.6: fp32 compressor state of a Flash sequence, 21 CSA layers with their
// indexers (d_c 128) and 20 HCA layers.
static_assert(4 * (21 * (kCsa.floats() + kCsaKeys.floats()) + 20 * kHca.floats()) == 12'206'080);
// A Pro sequence has 30 CSA and 31 HCA layers.
static_assert(4 * (30 * (kCsa.floats() + kCsaKeys.floats()) + 31 * kHca.floats()) == 18'710'528);

TEST(StateLayout, TokensLieInARing) {
  EXPECT_EQ(kCsa.rows(), 8);
  EXPECT_EQ(kCsa.columns(), 1024);
  EXPECT_EQ(kHca.rows(), 128);
  EXPECT_EQ(kHca.columns(), 512);
  for (int64_t t = 0; t < 300; ++t) {
    EXPECT_EQ(kCsa.row_of(t), t % 8);
    EXPECT_EQ(kHca.row_of(t), t % 128);
  }
  EXPECT_EQ(kCsa.row_of((int64_t{1} << 40) + 3), 3);
}

// The rows that a sequence of length n' reads are not overwritten by tokens up to n' + spare.
TEST(StateLayout, SpareRowsKeepWhatAnEarlierLengthReads) {
  for (const StateLayout layout : {StateLayout{4, 1, true, 3}, StateLayout{4, 1, true, 0},
                                   StateLayout{8, 1, false, 5}, StateLayout{1, 1, false, 2}}) {
    for (int64_t cut = 0; cut < 60; ++cut) {
      const int64_t block = cut / layout.ratio * layout.ratio;
      const int64_t oldest = layout.overlap ? block - layout.ratio : block;
      EXPECT_LE(cut + layout.spare - oldest, layout.rows()) << "cut " << cut;
    }
  }
}

}  // namespace
}  // namespace dsv4
