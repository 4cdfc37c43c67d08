#include "dsv4/formats/scale_tiles.h"

#include <gtest/gtest.h>

#include <set>

namespace dsv4 {
namespace {

// Offsets counted by hand from the drawing in the cuBLAS manual.
TEST(ScaleTiles, PlacesOfTheManual) {
  const ScaleTiles tiles{.n = 256, .groups = 8};
  EXPECT_EQ(tiles.bytes(), 256 * 8);
  EXPECT_EQ(tiles.at(0, 0), 0);
  EXPECT_EQ(tiles.at(0, 3), 3);
  EXPECT_EQ(tiles.at(32, 0), 4);
  EXPECT_EQ(tiles.at(96, 1), 13);
  EXPECT_EQ(tiles.at(1, 0), 16);
  EXPECT_EQ(tiles.at(127, 3), 511);
  EXPECT_EQ(tiles.at(0, 4), 512);
  EXPECT_EQ(tiles.at(128, 0), 1024);
  EXPECT_EQ((ScaleTiles{.n = 129, .groups = 5}.bytes()), 4 * 512);
}

TEST(ScaleTiles, EveryScaleHasItsOwnPlace) {
  const ScaleTiles tiles{.n = 300, .groups = 7};
  std::set<int64_t> places;
  for (int64_t row = 0; row < 300; ++row) {
    for (int64_t group = 0; group < 7; ++group) places.insert(tiles.at(row, group));
  }
  EXPECT_EQ(places.size(), 300u * 7);
  EXPECT_LT(*places.rbegin(), tiles.bytes());
}

}  // namespace
}  // namespace dsv4
