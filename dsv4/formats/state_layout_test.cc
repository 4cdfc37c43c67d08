#include "dsv4/formats/state_layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace dsv4 {
namespace {

// Spec 12.6: fp32 compressor state of a Flash sequence, 21 CSA layers with their indexers (d_c 128)
// and 20 HCA layers.
static_assert(4 * (21 * (StateLayout{4, 512}.floats() + StateLayout{4, 128}.floats()) +
                   20 * StateLayout{128, 512}.floats()) ==
              12'206'080);
// The same for a Pro sequence: 30 CSA, 31 HCA.
static_assert(4 * (30 * (StateLayout{4, 512}.floats() + StateLayout{4, 128}.floats()) +
                   31 * StateLayout{128, 512}.floats()) ==
              18'710'528);

TEST(StateLayout, RowsOfTheOpenBlock) {
  const StateLayout csa{4, 512}, hca{128, 512};
  EXPECT_EQ(csa.rows(), 8);
  EXPECT_EQ(csa.columns(), 1024);
  EXPECT_EQ(hca.rows(), 128);
  EXPECT_EQ(hca.columns(), 512);
  for (int64_t t = 0; t < 300; ++t) {
    EXPECT_EQ(csa.row_of(t), 4 + t % 4);
    EXPECT_EQ(hca.row_of(t), t % 128);
  }
  EXPECT_EQ(csa.row_of(int64_t{1} << 40), 4);
}

TEST(StateLayout, ResetGivesAbsentRowsZeroWeight) {
  for (const StateLayout& layout : {StateLayout{4, 8}, StateLayout{16, 3}}) {
    std::vector<float> state(static_cast<size_t>(layout.floats()) + 1, 5.f);
    reset_state(layout, state.data());
    for (int64_t i = 0; i < layout.floats(); ++i) {
      const float value = state[static_cast<size_t>(i)];
      EXPECT_EQ(value, i < layout.plane() ? 0.f : -std::numeric_limits<float>::infinity());
    }
    EXPECT_EQ(state.back(), 5.f) << "one past the end";
  }
}

}  // namespace
}  // namespace dsv4
