// The order in which Blackwell's tensor cores read the scales of FP4 blocks, and cuBLASLt wants
// them (VEC16_UE4M3 of NVFP4, VEC32_UE8M0 of MXFP4): tiles of 128 rows by 4 groups, 512 bytes each.
//
//   scales  [n, groups]                                  of files: a byte per group of columns
//   tiles   [ceil(n/128), ceil(groups/4), 32, 4, 4]      byte (row % 32, row / 32 % 4, group % 4)
//
// Rows and groups beyond the weight are zeros. Codes stay as files have them. Source: cuBLAS
// library, "1D block scaling factors layout".

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

struct ScaleTiles {
  static constexpr int kRows = 128, kGroups = 4, kBytes = kRows * kGroups;

  int64_t n = 0, groups = 0;

  DSV4_HD constexpr int64_t tile_rows() const { return ceil_div(n, int64_t{kRows}); }
  DSV4_HD constexpr int64_t tile_columns() const { return ceil_div(groups, int64_t{kGroups}); }
  DSV4_HD constexpr int64_t bytes() const { return tile_rows() * tile_columns() * kBytes; }
  // Where the scale of a row and a group is. The four groups of a tile are neighbors.
  DSV4_HD constexpr int64_t at(int64_t row, int64_t group) const {
    const int64_t tile = row / kRows * tile_columns() + group / kGroups;
    return tile * kBytes + row % 32 * 16 + row % kRows / 32 * 4 + group % kGroups;
  }
};

}  // namespace dsv4
