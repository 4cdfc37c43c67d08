// Implementation sm90_grouped of experts.h on the emulator: lists, rows, gate and up, down, as a
// stream of kernels.
//
// Faults that were put back and found: no wait for the tile's h'; its counter before the stores; a
// stage of x released a step early; codes released before they are read; staging that is not waited
// for, by either side; one buffer of factors. In e4m3 also: x released before its factors are read,
// codes before they are read; staging full after one pass, or not waited for; the exponent of gate
// for up; factors of another step; codes of h' or of x without their exchange; a zero that an
// exponent changes; y in the place of other tiles' x. In the halves: every tile of an expert at its
// first pair.

#include <gtest/gtest.h>

#include "tests/emulator/experts_grouped_runs.h"

namespace dsv4 {
namespace {

using namespace emulator::grouped_runs;

TEST(ExpertsGroupedEmulated, ReadsExpertsThroughATable) {
  const ImagesShape shape{.t = 20, .k = 2, .e = 4, .d = 288, .inner = 160};
  expect_same_bits_anywhere<Kbit<3>>(shape, 3);
  expect_same_bits_anywhere<OnGrid<3>>(shape, 3);
  expect_same_bits_anywhere<Mxfp4>(shape, WeightFormat::kMxfp4);
  expect_same_bits_anywhere<Folded>({.t = 20, .k = 2, .e = 4, .d = 288, .inner = 288},
                                    WeightFormat::kMxfp4);
}

// Tiles of several sizes, and several of an expert.
TEST(ExpertsGroupedEmulated, ExpertsInTurnsHaveTheSameBits) {
  const ImagesShape shape{.t = 20, .k = 3, .e = 6, .d = 288, .inner = 160};
  expect_same_bits_in_turns<Kbit<3>>(shape, 3);
  expect_same_bits_in_turns<Mxfp4>(shape, WeightFormat::kMxfp4);
  expect_same_bits_in_turns<Folded>({.t = 150, .k = 2, .e = 3, .d = 288, .inner = 288},
                                    WeightFormat::kMxfp4);
}

// Ids of no expert are pairs of expert 0 with weight 0: the sum has what the others give.
TEST(ExpertsGroupedEmulated, IdsOfNoExpertAddNothing) {
  const ImagesCase c({.t = 20, .k = 3, .e = 4, .d = 288, .inner = 160}, 3, 3);
  test::break_choices(c);
  const std::vector<float> got = result_of<Kbit<3>>(c, 20, kRuns[1]);
  test::mend_choices(c);
  EXPECT_TRUE(got == result_of<Kbit<3>>(c, 20, kRuns[1]));
}

TEST(ExpertsGroupedEmulated, EveryK) {
  check<2>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96});
  check<3>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  check<4>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64});
  check<5>({.t = 5, .k = 2, .e = 3, .d = 96, .inner = 160});
}

TEST(ExpertsGroupedEmulated, CodebooksOnTheE4m3Grid) {
  check<OnGrid<2>>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96}, 2, 2);
  check<OnGrid<3>>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352}, 3, 3);
  check<OnGrid<4>>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64}, 4, 4);
  const ImagesCase c({.t = 2, .k = 1, .e = 2, .d = 64, .inner = 32}, 3, 3);
  const ExpertImages& images = c.args.stack.images();
  using gemm::scaled_table, gemm::ScaledTable;
  EXPECT_EQ(scaled_table(images.down_codebook, ImageScale::kE4M4), ScaledTable::kE4m3);
  EXPECT_EQ(scaled_table(bnf_codebook(3), ImageScale::kE4M4), ScaledTable::kTwoBytes);
  EXPECT_EQ(scaled_table(e2m1_codebook(), ImageScale::kUe8m0), ScaledTable::kTwoBytes);
}

// 897 pairs are 8 tiles of 128 columns, 127 more than pairs.
TEST(ExpertsGroupedEmulated, ThereIsRoomForTheTilesOfAnyNumberOfPairs) {
  for (const grouped::Tiling& tiling : {grouped::kWideTiles, grouped::kBlockTiles}) {
    for (int pairs = 0; pairs <= 5000; ++pairs) {
      const sm90_grouped::Split split(tiling, pairs);
      EXPECT_GE(split.tiles * split.pairs, pairs);
      EXPECT_LE(split.columns, tiling.most);
      EXPECT_LE(split.tiles, sm90_grouped::max_tiles(tiling, pairs, 1)) << pairs;
      EXPECT_LE(split.tiles * split.columns, sm90_grouped::max_slots(tiling, pairs, 1)) << pairs;
    }
  }
}

// Tiles of every number of columns, and two to three tiles of an expert.
TEST(ExpertsGroupedEmulated, TilesOfEverySize) {
  for (const int64_t t : {1, 16, 17, 40, 64, 70, 90, 100, 113, 128, 129, 200, 257})
    check<3>({.t = t, .k = 1, .e = 3, .d = 96, .inner = 32, .only = 1});
}

// Two CTAs list 1,100 pairs.
TEST(ExpertsGroupedEmulated, PairsOfSeveralLists) {
  check<2>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 32});
}

// Several tiles of rows, several units, an item that ends in the middle of a row tile.
TEST(ExpertsGroupedEmulated, SeveralRowTiles) {
  check<3>({.t = 7, .k = 2, .e = 3, .d = 800, .inner = 288});
}

TEST(ExpertsGroupedEmulated, Fp4) {
  const ImagesShape shapes[] = {{.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352},
                                {.t = 140, .k = 1, .e = 2, .d = 96, .inner = 64, .only = 1}};
  for (const ImagesShape& s : shapes) {
    check<Mxfp4>(s, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
    check<Nvfp4>(s, WeightFormat::kNvfp4, WeightFormat::kNvfp4);
  }
}

// Exponents of one number, and of all that e4m3 operands hold.
TEST(ExpertsGroupedEmulated, Mxfp4WithFoldedScales) {
  const ImagesShape shapes[] = {
      {.t = 9, .k = 3, .e = 4, .d = 416, .inner = 352, .exponents = 1},
      {.t = 140, .k = 1, .e = 2, .d = 288, .inner = 512, .only = 1, .exponents = 12},
      {.t = 40, .k = 1, .e = 2, .d = 800, .inner = 288, .only = 0, .exponents = 12},
      {.t = 5, .k = 2, .e = 3, .d = 512, .inner = 1024, .exponents = 7}};
  for (const ImagesShape& s : shapes) check<Folded>(s, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
}

TEST(ExpertsGroupedEmulated, FoldedTilesOfEverySize) {
  for (const int64_t t : {1, 16, 17, 40, 64, 70, 90, 100, 113, 128, 129, 257})
    check<Folded>({.t = t, .k = 1, .e = 3, .d = 288, .inner = 288, .only = 1, .exponents = 12},
                  WeightFormat::kMxfp4, WeightFormat::kMxfp4);
}

// The two products are two launches, and h' is in the type of down's operands.
TEST(ExpertsGroupedEmulated, DifferentImages) {
  const ImagesShape s{.t = 7, .k = 2, .e = 3, .d = 288, .inner = 160};
  check<Kbit<3>, Kbit<4>>(s, 3, 4);
  check<Kbit<3>, Nvfp4>(s, 3, WeightFormat::kNvfp4);
  check<Mxfp4, Kbit<2>>(s, WeightFormat::kMxfp4, 2);
  const ImagesShape even{.t = 7, .k = 2, .e = 3, .d = 288, .inner = 288};
  check<Kbit<3>, Folded>(even, 3, WeightFormat::kMxfp4);
  check<Folded, Nvfp4>(even, WeightFormat::kMxfp4, WeightFormat::kNvfp4);
}

// Several tiles of an expert, pairs of two lists, and row tiles that end within a slice.
TEST(ExpertsGroupedEmulated, HalvesOfSlicesHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352};
  const ImagesShape tiles{.t = 140, .k = 1, .e = 2, .d = 288, .inner = 288, .only = 1};
  expect_bits_in_slices<Kbit<3>>(few, 3, {128, 352}, {384, 544});
  expect_bits_in_slices<Kbit<2>>(tiles, 2, {288}, {288});
  expect_bits_in_slices<OnGrid<4>>(few, 4, {128, 256, 352}, {128, 256, 544});
  expect_bits_in_slices<Mxfp4>(few, WeightFormat::kMxfp4, {256, 352}, {128, 544});
  expect_bits_in_slices<Mxfp4>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 160},
                               WeightFormat::kMxfp4, {128, 160}, {16, 32});
  expect_bits_in_slices<Nvfp4>(few, WeightFormat::kNvfp4, {128, 352}, {256, 544});
  const ImagesShape even{.t = 40, .k = 2, .e = 3, .d = 416, .inner = 480, .exponents = 12};
  expect_bits_in_slices<Folded>(even, WeightFormat::kMxfp4, {128, 384, 480}, {256, 384, 416});
  ImagesShape folded_tiles = tiles;
  folded_tiles.exponents = 12;
  expect_bits_in_slices<Folded>(folded_tiles, WeightFormat::kMxfp4, {256, 288}, {128, 288});
}

// Tiles of several sizes, several of an expert, pairs of two lists, and a rank without pairs.
TEST(ExpertsGroupedEmulated, HalvesOfWholeExpertsHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 9, .k = 3, .e = 5, .d = 544, .inner = 352};
  const ImagesShape tiles{.t = 140, .k = 1, .e = 3, .d = 288, .inner = 288, .only = 1};
  expect_bits_of_whole_experts<Kbit<3>>(few, 3, {2, 5});
  expect_bits_of_whole_experts<Kbit<2>>(tiles, 2, {1, 2, 3});
  expect_bits_of_whole_experts<OnGrid<4>>(few, 4, {1, 3, 5});
  expect_bits_of_whole_experts<Mxfp4>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 160},
                                      WeightFormat::kMxfp4, {3, 4, 7});
  expect_bits_of_whole_experts<Nvfp4>(few, WeightFormat::kNvfp4, {4, 5});
  const ImagesShape even{.t = 40, .k = 2, .e = 4, .d = 416, .inner = 480, .exponents = 12};
  expect_bits_of_whole_experts<Folded>(even, WeightFormat::kMxfp4, {2, 4});
}

TEST(ExpertsGroupedEmulated, BitsDoNotDependOnTheBatch) {
  expect_same_bits<Kbit<3>>(3);
  expect_same_bits<OnGrid<3>>(3);
  expect_same_bits<Mxfp4>(WeightFormat::kMxfp4);
  expect_same_bits<Folded>(WeightFormat::kMxfp4);
}

}  // namespace
}  // namespace dsv4
