// How products of few tokens are divided: host code of plan.h.

#include <gtest/gtest.h>

#include "dsv4/ops/gemm/sm90/plan.h"

namespace dsv4::gemm {
namespace {

constexpr int kSms = 132;  // of an H200
constexpr int kMostShared = 227 << 10;

struct Weight {
  Format format;
  int64_t n, k;  // of a group
  int64_t groups = 1, tiles_of_cluster = 1;
};

Shape shape_of(const Weight& w, int64_t tokens) {
  const int64_t tiles = ceil_div(w.n, kTileRows);
  return {.format = w.format,
          .tokens = tokens,
          .k = w.k,
          .tiles = w.groups * tiles,
          .tiles_per_group = tiles,
          .tiles_of_cluster = w.tiles_of_cluster,
          .stored_x = true};
}

// V4-Flash: wq_a, wkv, wq_b, wo_a, wo_b, shared w1 and w2, gate, a compressor, head; odd ones;
// wq_b, wo_a and wo_b as bit planes.
constexpr Weight kWeights[] = {{Format::kFp8, 1024, 4096},
                               {Format::kFp8, 512, 4096},
                               {Format::kFp8, 32768, 1024},
                               {Format::kFp8Bf16, 1024, 4096, 8, 2},
                               {Format::kFp8, 4096, 8192},
                               {Format::kFp8, 2048, 4096},
                               {Format::kFp8, 4096, 2048},
                               {Format::kBf16, 256, 4096},
                               {Format::kBf16, 1024, 4096},
                               {Format::kBf16, 129280, 4096},
                               {Format::kFp8, 1, 128},
                               {Format::kBf16, 200, 8},
                               {Format::kFp8Bf16, 384, 1152, 5, 2},
                               {Format::kBf16, 70, 16384, 3},
                               {Format::kKbit5, 32768, 1024},
                               {Format::kKbit5Bf16, 1024, 4096, 8},
                               {Format::kKbit5, 4096, 8192}};

TEST(FewGemmPlan, FitsAnSmAndKeepsGroupsApart) {
  for (const Weight& w : kWeights) {
    for (const int64_t tokens : {1, 8, 9, 16, 17, 32, 33, 48, 49, 64, 100}) {
      const Shape shape = shape_of(w, tokens);
      ASSERT_EQ(reject(shape), nullptr);
      const Split split = make_split(shape, kSms);
      const Layout layout(w.format, tile_tokens(shape), split);
      EXPECT_LE(layout.bytes, kMostShared);
      EXPECT_GE(split.stages, w.format == Format::kFp8Bf16 && tile_tokens(shape) > 48 ? 3 : 4);
      EXPECT_LE(split.stages, kMaxStages);
      EXPECT_LE(split.ranks(), std::min(kMaxRanks, split.slabs));
      EXPECT_LE(split.rank_slabs(), kMaxRankSlabs);
      EXPECT_EQ(split.tiles_per_cluster % w.tiles_of_cluster, 0);
      if (w.groups > 1) {
        EXPECT_EQ(split.tiles_per_group % split.tiles_per_cluster, 0);
      }
      EXPECT_GE(split.clusters() * split.tiles_per_cluster, split.tiles);
      EXPECT_LT((split.clusters() - 1) * split.tiles_per_cluster, split.tiles);
    }
  }
}

// The order of additions must not depend on the number of tokens, nor on the GPU.
TEST(FewGemmPlan, RanksDependOnTheWeightAlone) {
  for (const Weight& w : kWeights) {
    const int bits = make_split(shape_of(w, 1), kSms).rank_bits;
    for (const int64_t tokens : {8, 17, 32, 40, 64, 100})
      for (const int sms : {1, 78, kSms})
        EXPECT_EQ(make_split(shape_of(w, tokens), sms).rank_bits, bits) << w.n;
  }
}

// At most two CTAs per SM, and three fit, so that the next kernel can fill its ring.
TEST(FewGemmPlan, ADecodeStepIsOneWave) {
  for (const Weight& w : kWeights) {
    if (w.groups > 1 && w.n == 70) continue;  // a cluster for every group and tile
    const Shape shape = shape_of(w, 1);
    const Split split = make_split(shape, kSms);
    EXPECT_LE(split.clusters() * split.ranks(), 2 * kSms) << w.n;
    EXPECT_LE(Layout(w.format, tile_tokens(shape), split).bytes, 75 << 10) << w.n;
  }
}

// All CTAs run at a time, two on an SM.
TEST(FewGemmPlan, ManyTokensAreOneWave) {
  for (const Weight& w : kWeights) {
    if (w.groups > 1 && w.n == 70) continue;  // a cluster for every group and tile
    for (const int64_t tokens : {9, 32, 33, 48, 64}) {
      const Shape shape = shape_of(w, tokens);
      if (bits_of(w.format) > 0) continue;
      const Split split = make_split(shape, kSms);
      EXPECT_LE(Layout(w.format, tile_tokens(shape), split).bytes, 113 << 10) << w.n;
      EXPECT_LE(split.clusters() * split.ranks(), 2 * kSms) << w.n << " " << tokens;
    }
  }
}

// Tiles of more than 32 tokens want activations as they are multiplied. In f16 those of 32 would
// leave a CTA alone on its SM.
TEST(FewGemmPlan, TilesOfManyTokens) {
  Shape shape = shape_of({Format::kFp8, 4096, 8192}, 64);
  EXPECT_EQ(tile_tokens(shape), 64);
  shape.stored_x = false;
  EXPECT_EQ(tile_tokens(shape), 32);
  EXPECT_EQ(tile_tokens(shape_of({Format::kFp8, 4096, 8192}, 48)), 48);
  EXPECT_EQ(tile_tokens(shape_of({Format::kFp8, 4096, 8192}, 32)), 32);
  EXPECT_EQ(tile_tokens(shape_of({Format::kFp8Bf16, 1024, 4096, 8, 2}, 64)), 64);
  EXPECT_EQ(tile_tokens(shape_of({Format::kFp8Bf16, 1024, 4096, 8, 2}, 17)), 48);
  EXPECT_EQ(tile_tokens(shape_of({Format::kFp8Bf16, 1024, 4096, 8, 2}, 16)), 16);
}

TEST(FewGemmPlan, FlashWeightsUseMostOfTheGpu) {
  const auto ctas = [](const Weight& w) {
    const Split split = make_split(shape_of(w, 1), kSms);
    return split.clusters() * split.ranks();
  };
  for (const int i : {2, 3, 4, 5, 6, 14, 15, 16}) EXPECT_EQ(ctas(kWeights[i]), 256) << i;
  EXPECT_EQ(ctas(kWeights[9]), 264);  // head
}

// wq_b of the queries and of the indexer: no ranks, as in attention_in/sm90_few.
TEST(FewGemmPlan, LatentsStayWhole) {
  for (const int64_t n : {32768, 8192})
    EXPECT_EQ(make_split(shape_of({Format::kFp8, n, 1024}, 1), kSms).ranks(), 1) << n;
  EXPECT_GT(make_split(shape_of({Format::kFp8, 4096, 1024}, 1), kSms).ranks(), 1);
  EXPECT_GT(make_split(shape_of({Format::kFp8, 8192, 1536}, 1), kSms).ranks(), 1);
}

TEST(FewGemmPlan, TwoFormatsShareClusters) {
  for (const int64_t tiles : {0, 16, 41}) {
    Shape q8{.format = Format::kFp8, .tokens = 1, .k = 4096, .tiles = 24, .tiles_per_group = 24};
    Shape bf16 = q8;
    bf16.format = Format::kBf16, bf16.tiles = tiles,
    bf16.tiles_per_group = std::max<int64_t>(1, tiles);
    const TwoSplits split = make_two_splits(q8, bf16, kSms);
    EXPECT_EQ(split.q8.rank_bits, split.bf16.rank_bits);
    EXPECT_LE((split.q8.clusters() + split.bf16.clusters()) * split.q8.ranks(), 2 * kSms);
    EXPECT_EQ(split.bf16.clusters() == 0, tiles == 0);
  }
}

// A rank without slabs would leave copies behind.
TEST(FewGemmPlan, EveryRankOfAPairHasSlabs) {
  for (const Format format : {Format::kFp8, Format::kKbit5}) {
    for (const int64_t k : {256, 512, 1024, 4096, 7168}) {
      const Shape q8{.format = format, .tokens = 1, .k = k, .tiles = 8, .tiles_per_group = 8};
      Shape bf16 = q8;
      bf16.format = Format::kBf16, bf16.tiles = bf16.tiles_per_group = 1;
      const TwoSplits split = make_two_splits(q8, bf16, kSms);
      EXPECT_LE(split.q8.ranks(), split.q8.slabs) << k;
      EXPECT_EQ(split.q8.rank_bits, split.bf16.rank_bits);
    }
  }
}

// Two tiles of FP8 weights belong together; those of BF16 weights do not.
TEST(FewGemmPlan, ClustersOfAPairHaveWholeRunsOfTiles) {
  for (const int64_t groups : {1, 32, 48, 500}) {
    for (const int ctas_per_sm : {2, 3}) {
      const Shape q8{.format = Format::kFp8,
                     .tokens = 32,
                     .k = 4096,
                     .tiles = 2 * groups,
                     .tiles_per_group = 2 * groups,
                     .tiles_of_cluster = 2,
                     .ctas_per_sm = ctas_per_sm};
      Shape bf16 = q8;
      bf16.format = Format::kBf16, bf16.tiles = bf16.tiles_per_group = 4, bf16.tiles_of_cluster = 1;
      const TwoSplits split = make_two_splits(q8, bf16, kSms);
      EXPECT_EQ(split.q8.tiles_per_cluster, 2 * split.bf16.tiles_per_cluster);
      EXPECT_EQ(split.q8.rank_bits, split.bf16.rank_bits);
      EXPECT_LE((split.q8.clusters() + split.bf16.clusters()) * split.q8.ranks(),
                ctas_per_sm * kSms);
    }
  }
}

TEST(FewGemmPlan, RejectsLongRows) {
  EXPECT_NE(reject(shape_of({Format::kBf16, 64, 64 * 1024}, 1)), nullptr);
}

}  // namespace
}  // namespace dsv4::gemm
