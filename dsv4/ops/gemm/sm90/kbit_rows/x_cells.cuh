// x of a rank as operands of wgmma, in the order of columns in which lanes decode the weight: the
// product of step t of a unit (128 columns, a block of 32 for each lane of four) takes columns
// 4 t .. 4 t + 3 of each of the 4 blocks. A cell has two columns of each block:
//
//   cell (unit u, pair p, row r) = x[r][128 u + 32 j + 2 p .. + 1], j = 0 .. 3
//
// and cells of a pair follow each other by rows. Only rows that exist have cells; the product
// reads those of later pairs for the others, whose sums are not taken.
//
// Where warps multiply on their own (up to 8 rows), a lane reads the columns of its block by four
// pairs, and a cell is what memory has:
//
//   cell (unit u, quarter q, row r, block j) = x[r][128 u + 32 j + 8 q .. + 7]
//
// so that eight lanes read cells that follow each other.

#pragma once

#include "dsv4/ops/gemm/sm90/kbit_rows/config.cuh"

namespace dsv4::gemm::kbit_rows {

inline constexpr int kPairs = 16;  // of a block

// By all threads of the CTA; columns past the end are zeros. kCells: rows that have cells
template <int kCells>
__device__ void stage_x(const Params& p, const Share& share, const Memory& memory) {
  const int first_token = static_cast<int>(blockIdx.y) * kCells;
  const int tokens = min(kCells, p.tokens - first_token);
  const int first = p.plan.rank_first_unit(share.rank);
  const int units = min(p.plan.units, p.plan.rank_first_unit(share.rank + 1)) - first;
  constexpr bool kFew = kCells <= kFewCells;
  for (int i = static_cast<int>(threadIdx.x); i < units * 4 * kCells; i += kThreads) {
    // Either a quarter of four blocks, or four quarters of a block.
    const int row = kFew ? i / 4 % kCells : i / (units * 4);
    const int unit = kFew ? i / (4 * kCells) : i / 4 % units, part = i % 4;
    const auto* const from =
        reinterpret_cast<const uint16_t*>(p.x) + (first_token + min(row, tokens - 1)) * p.x_stride;
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = (first + unit) * kUnit + (kFew ? 32 * part + 8 * j : 32 * j + 8 * part);
      v[j] = column < p.k ? *reinterpret_cast<const uint4*>(from + column) : uint4{};
    }
    auto* const cells = reinterpret_cast<uint4*>(memory.x()) + unit * kPairs * kCells;
    if constexpr (kFew) {
#pragma unroll
      for (int q = 0; q < 4; ++q) cells[(q * kCells + row) * 4 + part] = v[q];
    } else {
      auto* const to = cells + 4 * part * kCells + row;
      to[0] = make_uint4(v[0].x, v[1].x, v[2].x, v[3].x);
      to[kCells] = make_uint4(v[0].y, v[1].y, v[2].y, v[3].y);
      to[2 * kCells] = make_uint4(v[0].z, v[1].z, v[2].z, v[3].z);
      to[3 * kCells] = make_uint4(v[0].w, v[1].w, v[2].w, v[3].w);
    }
  }
}

}  // namespace dsv4::gemm::kbit_rows
