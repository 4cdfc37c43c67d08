#include "dsv4/formats/kbit.h"

#include <gtest/gtest.h>

#include <set>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

TEST(Kbit, GoldenPlanes) {  // docs/spec/lowbit.md 1.6
  constexpr uint32_t kWant[] = {0xaaaaaaaa, 0xcccccccc, 0xf0f0f0f0, 0xff00ff00, 0xffff0000};
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    uint8_t codes[kKbitBlock];
    for (int i = 0; i < kKbitBlock; ++i) codes[i] = static_cast<uint8_t>(i % (1 << bits));
    uint32_t planes[kMaxKbit];
    pack_kbit_block(codes, bits, planes);
    for (int j = 0; j < bits; ++j) EXPECT_EQ(planes[j], kWant[j]) << bits << ' ' << j;
  }
}

TEST(Kbit, RoundTripsCodes) {
  Rng rng(1);
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    uint8_t codes[kKbitBlock];
    for (uint8_t& code : codes) code = static_cast<uint8_t>(rng.below(1 << bits));
    uint32_t planes[kMaxKbit];
    pack_kbit_block(codes, bits, planes);
    for (int i = 0; i < kKbitBlock; ++i) EXPECT_EQ(kbit_code(planes, bits, i), codes[i]);
  }
}

// The reference's order: tiles of 64 k x 128 n, tiles along k outermost; within a tile: column,
// block, plane.
TEST(Kbit, TiledOrderIsTilesColumnsBlocksPlanes) {
  for (const int64_t k : {32, 64, 96, 256}) {
    const KbitTiles tiles{.n = 256, .k = k, .bits = 3};
    std::set<int64_t> seen;
    int64_t position = 0;
    for (int64_t k_tile = 0; k_tile * 64 < k; ++k_tile) {
      for (int64_t n_tile = 0; n_tile < 2; ++n_tile) {
        for (int64_t column = 0; column < 128; ++column) {
          for (int64_t kb = 0; kb < 2; ++kb) {
            for (int plane = 0; plane < 3; ++plane, ++position) {
              const int64_t row = n_tile * 128 + column, block = k_tile * 2 + kb;
              EXPECT_EQ(tiles.word(row, block, plane), position);
              seen.insert(position);
            }
          }
        }
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), tiles.num_blocks() * 3);
  }
}

}  // namespace
}  // namespace dsv4
