// Implementation sm90_many_e4m3 of experts.h on the emulator: the bits of sm90_few_e4m3 and
// sm90_wide, in tiles of every size.

#include <gtest/gtest.h>

#include "tests/emulator/experts_few_runs.h"
#include "tests/emulator/experts_grouped_runs.h"

namespace dsv4 {
namespace {

using namespace emulator::grouped_runs;

// Few: the kernels for few pairs.
template <class Many, class Few>
void expect_bits_of_few(const ImagesShape& s, const test::ImageSource& source) {
  SCOPED_TRACE(
      fmt::format("{} t={} k={} e={} d={} i={}", name(source), s.t, s.k, s.e, s.d, s.inner));
  const ImagesCase c(s, source, source);
  const std::vector<float> few = emulator::result_of<Few>(c, s.t, emulator::kFewRuns[1]);
  const Run& how = kRuns[s.t % std::size(kRuns)];
  EXPECT_TRUE(result_of<Many>(c, s.t, how) == few) << how.seed;
}

using emulator::E4M3;
using Mxfp4InBlocks = InBlocks<4, ImageScale::kUe8m0>;
using Mxfp4OfFew = emulator::Fp4<WeightFormat::kMxfp4>;

// Fewer chunks of 256 columns than warpgroups of the kernels for few pairs, as many, and more.
TEST(ExpertsManyEmulated, BitsOfTheKernelsForFewPairs) {
  const ImagesShape shapes[] = {{.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352},
                                {.t = 40, .k = 2, .e = 3, .d = 288, .inner = 96},
                                {.t = 5, .k = 2, .e = 3, .d = 1056, .inner = 1312}};
  for (const ImagesShape& s : shapes) {
    expect_bits_of_few<InBlocks<2>, E4M3<2>>(s, 2);
    expect_bits_of_few<InBlocks<3>, E4M3<3>>(s, 3);
    expect_bits_of_few<InBlocks<4>, E4M3<4>>(s, 4);
    expect_bits_of_few<Mxfp4InBlocks, Mxfp4OfFew>(s, WeightFormat::kMxfp4);
  }
  expect_bits_of_few<InBlocks<2>, emulator::Wide<2>>(
      {.t = 3, .k = 2, .e = 3, .d = 4384, .inner = 64}, 2);
}

// Tiles of every number of columns, and two to three tiles of an expert.
TEST(ExpertsManyEmulated, TilesOfEverySize) {
  for (const int64_t t : {1, 8, 9, 17, 30, 38, 45, 48, 49, 97})
    expect_bits_of_few<InBlocks<3>, E4M3<3>>(
        {.t = t, .k = 1, .e = 3, .d = 288, .inner = 288, .only = 1}, 3);
}

TEST(ExpertsManyEmulated, AgreesWithTheOracle) {
  check<InBlocks<3>>({.t = 70, .k = 2, .e = 3, .d = 288, .inner = 160}, 3, 3);
  check<InBlocks<3>, InBlocks<4>>({.t = 7, .k = 2, .e = 3, .d = 288, .inner = 160}, 3, 4);
  check<Mxfp4InBlocks, InBlocks<2>>({.t = 7, .k = 2, .e = 3, .d = 288, .inner = 160},
                                    WeightFormat::kMxfp4, 2);
}

TEST(ExpertsManyEmulated, PlacesTurnsAndBatchesHaveTheSameBits) {
  const ImagesShape shape{.t = 20, .k = 3, .e = 6, .d = 288, .inner = 160};
  expect_same_bits_anywhere<InBlocks<3>>(shape, 3);
  expect_same_bits_in_turns<InBlocks<3>>(shape, 3);
  expect_same_bits<InBlocks<3>>(3);
}

TEST(ExpertsManyEmulated, HalvesHaveTheBitsOfTheWhole) {
  const ImagesShape few{.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352};
  const ImagesShape tiles{.t = 140, .k = 1, .e = 3, .d = 288, .inner = 288, .only = 1};
  expect_bits_in_slices<InBlocks<3>>(few, 3, {128, 352}, {384, 544});
  expect_bits_in_slices<Mxfp4InBlocks>(tiles, WeightFormat::kMxfp4, {256, 288}, {128, 288});
  expect_bits_of_whole_experts<InBlocks<3>>(tiles, 3, {1, 2, 3});
}

}  // namespace
}  // namespace dsv4
