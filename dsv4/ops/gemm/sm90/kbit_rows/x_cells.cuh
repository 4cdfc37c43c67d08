// x of a rank as operands of wgmma, in the order of columns in which lanes decode the weight: the
// product of step t of a unit (128 columns, a block of 32 for each lane of four) takes columns
// 4 t .. 4 t + 3 of each of the 4 blocks. A cell has two columns of each block:
//
//   cell (unit u, pair p, row r) = x[r][128 u + 32 j + 2 p .. + 1], j = 0 .. 3
//
// and cells of a pair follow each other by rows. Only rows that exist have cells; the product
// reads those of later pairs for the others, whose sums are not taken.

#pragma once

#include "dsv4/ops/gemm/sm90/kbit_rows/config.cuh"

namespace dsv4::gemm::kbit_rows {

inline constexpr int kPairs = 16;  // of a block

// By all threads of the CTA; columns past the end are zeros. kCells: rows that have cells
template <int kCells>
__device__ void stage_x(const Params& p, const Share& share, const Memory& memory, int first_token,
                        int tokens) {
  const int first = p.plan.rank_first_unit(share.rank);
  const int units = min(p.plan.units, p.plan.rank_first_unit(share.rank + 1)) - first;
  const int items = units * 4;
  for (int i = static_cast<int>(threadIdx.x); i < items * kCells; i += kThreads) {
    const int row = i / items, unit = i % items / 4, quarter = i % 4;
    const auto* const from =
        reinterpret_cast<const uint16_t*>(p.x) + (first_token + min(row, tokens - 1)) * p.x_stride;
    uint4 block[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = (first + unit) * kUnit + 32 * j + 8 * quarter;
      block[j] = column < p.k ? *reinterpret_cast<const uint4*>(from + column) : uint4{};
    }
    auto* const to =
        reinterpret_cast<uint4*>(memory.x()) + (unit * kPairs + 4 * quarter) * kCells + row;
    to[0] = make_uint4(block[0].x, block[1].x, block[2].x, block[3].x);
    to[kCells] = make_uint4(block[0].y, block[1].y, block[2].y, block[3].y);
    to[2 * kCells] = make_uint4(block[0].z, block[1].z, block[2].z, block[3].z);
    to[3 * kCells] = make_uint4(block[0].w, block[1].w, block[2].w, block[3].w);
  }
}

}  // namespace dsv4::gemm::kbit_rows
