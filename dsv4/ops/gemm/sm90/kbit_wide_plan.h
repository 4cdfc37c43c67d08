// How a product of many rows of x with a k-bit weight in rows is divided (kbit_wide.h). Host code
// and device code without CUDA.
//
//   unit     128 columns: a block of 32 for each lane of four
//   tile     64 rows of the weight for each of two or four warpgroups, times 32 to 128 rows of x:
//            the work of a cluster
//   share    the units of a CTA of the cluster; the sums of the shares are added in order
//
// The number of shares follows from the shape of the weight and the GPU. A tile decides nothing
// about the order of additions, so it may depend on the rows of x: a row has the same bits beside
// any others.

#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::gemm::kbit_wide {

inline constexpr int kUnit = 128, kBlock = 32, kUnitBlocks = kUnit / kBlock;
inline constexpr int kHalfRow = kUnit / 2;  // a row of x in shared memory, 128 bytes
inline constexpr int kGroupRows = 64;
// Scales come for so many columns at once: 16 bytes of a row.
inline constexpr int kScaleUnits = 4, kScaleColumns = kScaleUnits * kUnit;
inline constexpr int kMostRankBits = 3;

struct Tile {
  int groups = 2, columns = 64;  // consumer warpgroups; rows of x

  constexpr int rows() const { return kGroupRows * groups; }
};
inline constexpr Tile kTiles[] = {{2, 32}, {2, 64}, {2, 96}, {2, 128}, {4, 64}, {4, 96}, {4, 128}};

struct Plan {
  int rank_bits = 0;  // CTAs of a cluster: a power of two
  int units = 0;      // of a row
  Tile tile;
  int row_tiles = 0, x_tiles = 0;

  constexpr int ranks() const { return 1 << rank_bits; }
};
// Units of a rank: [first_unit(rank), first_unit(rank + 1)).
DSV4_HD constexpr int first_unit(int units, int rank_bits, int rank) {
  return static_cast<int>(int64_t{units} * rank >> rank_bits);
}

// Clusters that run at a time, one CTA on an SM: a GPC has whole clusters.
inline int64_t resident_clusters(int rank_bits, int num_sms) {
  constexpr int kOfH200[] = {132, 66, 30, 15}, kSms = 132;
  return std::max(1, kOfH200[rank_bits] * num_sms / kSms);
}

// Predicted clocks of a call with K = 4 at 1.75 GHz, fitted to 231 times of an H200: four weights,
// 64 to 256 rows of x, every tile, 1 to 8 shares. They are off by 3.5 % (root of the mean square),
// one by 16 %. A wave makes its table, multiplies its units and stores its tile.
inline double clocks(const Tile& tile, int64_t n, int64_t k, int64_t tokens, int rank_bits,
                     int num_sms) {
  constexpr double kCall = 2600, kOrder = 0.0092;  // of a call; of an element of x
  constexpr double kWave = 4200, kStore = 0.25;    // of a wave; of an element of a tile of out
  constexpr double kEachUnit = 310, kEachGroup = 160, kEachColumn = 2.75;
  const auto elements = static_cast<double>(tile.rows() * tile.columns);
  const double unit = kEachUnit + tile.groups * (kEachGroup + kEachColumn * tile.columns);
  const auto units = static_cast<double>(ceil_div(ceil_div(k, int64_t{kUnit}), 1L << rank_bits));
  const int64_t tiles = ceil_div(n, int64_t{tile.rows()}) * ceil_div(tokens, int64_t{tile.columns});
  const auto waves = static_cast<double>(ceil_div(tiles, resident_clusters(rank_bits, num_sms)));
  return kCall + kOrder * static_cast<double>(tokens * k) +
         waves * (kWave + units * unit + kStore * elements);
}

inline Tile best_tile(int64_t n, int64_t k, int64_t tokens, int rank_bits, int num_sms) {
  return *std::ranges::min_element(
      kTiles, {}, [&](const Tile& tile) { return clocks(tile, n, k, tokens, rank_bits, num_sms); });
}

// The shares that a weight has: those with which 64, 96, 128, 192 and 256 rows of x together take
// least.
inline int rank_bits_of(int64_t n, int64_t k, int num_sms) {
  int best = 0;
  double least = 0;
  for (int bits = 0; bits <= kMostRankBits; ++bits) {
    if (int64_t{kUnit} << bits > k) break;
    double all = 0;
    for (const int64_t tokens : {64, 96, 128, 192, 256})
      all += clocks(best_tile(n, k, tokens, bits, num_sms), n, k, tokens, bits, num_sms);
    if (bits > 0 && all >= least) continue;
    least = all, best = bits;
  }
  return best;
}

inline Plan make_plan(int64_t n, int64_t k, int64_t tokens, int num_sms) {
  Plan plan;
  plan.rank_bits = rank_bits_of(n, k, num_sms);
  plan.units = static_cast<int>(ceil_div(k, int64_t{kUnit}));
  plan.tile = best_tile(n, k, tokens, plan.rank_bits, num_sms);
  plan.row_tiles = static_cast<int>(ceil_div(n, int64_t{plan.tile.rows()}));
  plan.x_tiles = static_cast<int>(ceil_div(tokens, int64_t{plan.tile.columns}));
  return plan;
}

}  // namespace dsv4::gemm::kbit_wide
