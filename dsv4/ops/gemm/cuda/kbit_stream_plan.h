// How a product of few rows of x with a k-bit weight in rows is divided (kbit_stream.h). Host code
// and device code without CUDA.
//
//   tile     16 rows of the weight
//   unit     128 columns: a block of 32 for each lane of four
//   CTA      kWarps warps, row_groups x k_groups; it has consecutive tiles. Two CTAs share an SM,
//            and all run at once
//   round    row_groups x group_tiles tiles of a CTA. A warp has the tiles of its row group, and of
//            their columns its share of the units; the shares of k groups are added in order
//
// Only the shape of the weight and the GPU decide the order of additions, so a row of x has the
// same bits whatever rows are beside it.

#pragma once

#include <algorithm>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::gemm::kbit_stream {

inline constexpr int kTileRows = 16, kUnit = 128, kBlock = 32;
inline constexpr int kWarps = 8, kThreads = kWarps * 32;
inline constexpr int kCtasOfSm = 2;
inline constexpr int64_t kMaxTokens = 64;  // of a call
// Rows of x of a CTA, and the tiles of a round whose sums a warp keeps in registers.
constexpr int tile_tokens(int64_t tokens) {
  return tokens <= 8 ? 8 : 16;
}
constexpr int max_group_tiles(int tokens) {
  return tokens <= 8 ? 4 : 2;
}

struct Plan {
  int k_groups = 1, units = 0;
  int ctas = 0;
  int least_tiles = 0, longer_ctas = 0;  // of a CTA; the first CTAs have one more
  int rounds = 0, group_tiles = 0;

  DSV4_HD constexpr int row_groups() const { return kWarps / k_groups; }
  // Tiles of a CTA: [first_tile(i), first_tile(i + 1)).
  DSV4_HD constexpr int first_tile(int cta) const {
    return cta * least_tiles + (cta < longer_ctas ? cta : longer_ctas);
  }
  // Units of a k group: [first_unit(i), first_unit(i + 1)).
  DSV4_HD constexpr int first_unit(int k_group) const { return units * k_group / k_groups; }
};

// tokens: of a CTA, 8 or 16. The number of k groups does not depend on them: it is the one for
// which the warp with most work has least, at equal work the largest.
inline Plan make_plan(int64_t n, int64_t k, int tokens, int num_sms) {
  const int64_t all_tiles = ceil_div(n, int64_t{kTileRows});
  Plan plan;
  plan.units = static_cast<int>(ceil_div(k, int64_t{kUnit}));
  plan.ctas = static_cast<int>(std::min(all_tiles, int64_t{kCtasOfSm} * num_sms));
  plan.least_tiles = static_cast<int>(all_tiles / plan.ctas);
  plan.longer_ctas = static_cast<int>(all_tiles % plan.ctas);
  const int tiles = plan.least_tiles + (plan.longer_ctas > 0 ? 1 : 0);
  int64_t least = 0;
  for (int k_groups = kWarps; k_groups >= 1; k_groups /= 2) {
    const int64_t work = ceil_div(plan.units, k_groups) * ceil_div(tiles, kWarps / k_groups);
    if (least > 0 && work >= least) continue;
    least = work;
    plan.k_groups = k_groups;
  }
  const int groups = plan.row_groups();
  plan.rounds = static_cast<int>(ceil_div(tiles, groups * max_group_tiles(tokens)));
  plan.group_tiles = static_cast<int>(ceil_div(tiles, groups * plan.rounds));
  return plan;
}

// The ring of a warp has so many slots; a slot is a unit of a tile.
constexpr int slots(int bits) {
  return bits == 2 ? 7 : bits == 3 ? 5 : 3;
}
constexpr int slot_bytes(int bits) {
  return kTileRows * kUnit / 8 * bits;
}

// Offsets in shared memory, in bytes. The table is at 0.
struct Layout {
  int ring, sums, sums_pitch, book, bytes;

  DSV4_HD constexpr Layout(int bits, int tokens)
      : ring(64 << 10),
        sums(ring + kWarps * slots(bits) * slot_bytes(bits)),
        // Two lanes of a quad write other banks than the next quad.
        sums_pitch(max_group_tiles(tokens) * kTileRows + 4),
        book(sums + kWarps * tokens * sums_pitch * 4),
        bytes(book + 64) {}
};

}  // namespace dsv4::gemm::kbit_stream
