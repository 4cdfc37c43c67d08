// How products of listed rows with k-bit weights are divided (kbit_experts.h). Host code and device
// code without CUDA. Tiles, units and rings are those of kbit_stream_plan.h.
//
//   item    up to 8 rows of x and their matrix: a tile of the list
//   block   row_groups x row_tiles tiles of a matrix, of each side (gate and up have two), for an
//           item. Its warps are row_groups x k_groups: each has the tiles of its row group, and of
//           their columns its share of the units; the shares of k groups are added in order
//   CTA     consecutive blocks of all items; how many there are only the device knows
//
// Only n, k and the number of sides decide the order of additions, so a row of x has the same bits
// whatever rows are beside it.

#pragma once

#include "dsv4/ops/gemm/cuda/kbit_stream_plan.h"

namespace dsv4::gemm::kbit_experts {

using kbit_stream::kTileRows, kbit_stream::kUnit, kbit_stream::kBlock;
using kbit_stream::kWarps, kbit_stream::kThreads, kbit_stream::kCtasOfSm;

inline constexpr int kTokens = 8;      // of an item
inline constexpr int kGroupTiles = 2;  // of a warp in a block, at most

struct Plan {
  int k_groups = 1, units = 0;
  int row_tiles = 1;   // of a row group; with two sides of each
  int row_blocks = 0;  // of a matrix
  int ctas = 0;

  DSV4_HD constexpr int row_groups() const { return kWarps / k_groups; }
  DSV4_HD constexpr int group_rows() const { return row_tiles * kTileRows; }
  DSV4_HD constexpr int block_rows() const { return row_groups() * group_rows(); }
  // Units of a k group: [first_unit(i), first_unit(i + 1)).
  DSV4_HD constexpr int first_unit(int k_group) const { return units * k_group / k_groups; }
  // Blocks of a CTA: [first_block(i), first_block(i + 1)).
  DSV4_HD constexpr int first_block(int items, int cta) const {
    return static_cast<int>(int64_t{items} * row_blocks * cta / ctas);
  }
};

// sides: 1 or 2. items: as many as there may be
inline Plan make_plan(int64_t n, int64_t k, int sides, int64_t items, int num_sms) {
  Plan plan;
  plan.units = static_cast<int>(ceil_div(k, int64_t{kUnit}));
  // A warp has two units or more of a tile, where there are as many.
  while (plan.k_groups < kWarps && 4 * plan.k_groups <= plan.units) plan.k_groups *= 2;
  const int64_t most_ctas = int64_t{kCtasOfSm} * num_sms;
  int64_t least = 0;
  for (int row_tiles = kGroupTiles / sides; row_tiles >= 1; --row_tiles) {
    const int64_t blocks = ceil_div(n, int64_t{plan.row_groups()} * row_tiles * kTileRows);
    const int64_t work = ceil_div(blocks * items, most_ctas) * row_tiles;
    if (least > 0 && work >= least) continue;
    least = work;
    plan.row_tiles = row_tiles;
    plan.row_blocks = static_cast<int>(blocks);
    plan.ctas = static_cast<int>(std::min(blocks * items, most_ctas));
  }
  return plan;
}

// Offsets in shared memory, in bytes. The table is at 0.
struct Layout {
  static constexpr int kSumsPitch = kGroupTiles * kTileRows + 4;  // as in kbit_stream_plan.h
  static constexpr int kSumsBytes = kWarps * kTokens * kSumsPitch * 4;

  int ring, sums, book, bytes;

  DSV4_HD constexpr Layout(int bits)
      : ring(64 << 10),
        sums(ring + kWarps * kbit_stream::slots(bits) * kbit_stream::slot_bytes(bits)),
        book(sums + 2 * kSumsBytes),
        bytes(book + 64) {}
};

}  // namespace dsv4::gemm::kbit_experts
