// How a product of up to 64 rows of x with a k-bit weight in rows is divided over a Hopper GPU
// (kbit_rows.h). Host code and device code without CUDA.
//
//   unit     128 columns of the weight; a stage of a ring has `stage_units` of them (with an odd
//            number loads of a stage are free of bank conflicts)
//   share    the stages that a warpgroup has of its rows: shares of K are `ranks` x `k_groups`
//   CTA      4 warpgroups: row_groups x k_groups. Up to 8 rows of x: where a warpgroup has up to 32
//            rows, its warps share its units
//   cluster  `ranks` CTAs with the same rows; each has its part of the columns, and of x
//   round    row_groups groups of rows of a cluster; a cluster has every clusters-th. Groups differ
//            by one row, so that all SMs have work: what is idle takes two CTAs of the next kernel
//
// The number of shares decides the order of additions. It depends on the shape of the weight, on
// the GPU and on the rows of x, rounded up to a power of two of at most 32.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::gemm::kbit_rows {

inline constexpr int kUnit = 128;
inline constexpr int kWarpgroups = 4, kGroupThreads = 128, kThreads = kWarpgroups * kGroupThreads;
inline constexpr int kShares = kWarpgroups;  // of K: ranks x k_groups
inline constexpr int kGroupRows = 64;        // of a warpgroup, at most
// Larger clusters do not fill an H200 in one wave.
inline constexpr int kMaxRanks = 2;
inline constexpr int kMaxStages = 8, kMaxStageUnits = 5;
inline constexpr int kMaxCells = 32;  // rows of x of a CTA
inline constexpr int kFewCells = 8;   // rows of x of a CTA that warps multiply on their own
inline constexpr int64_t kMaxTokens = 64;

struct Shape {
  int bits = 0;
  int64_t n = 0, k = 0, tokens = 0;
};

struct Plan {
  int cells = 0;       // rows of x of a CTA: 1, 2, 4, .. 32; 0: no plan fits
  int ranks = 1;       // CTAs of a cluster
  int row_groups = 1;  // warpgroups with different rows
  int clusters = 0, rounds = 0;
  int rows = 0;                   // of a warpgroup in a round, at most
  int even_rows = 0, longer = 0;  // rows of a group; groups of rows that have one more
  int units = 0, stage_units = 1, stages = 0;

  DSV4_HD constexpr int first_row(int group) const {
    return group * even_rows + (group < longer ? group : longer);
  }
  int row_stages = 0;  // of a row of the weight
  // Shifts instead of divisions: ranks and row_groups are 1 or 2.
  DSV4_HD constexpr int k_groups() const { return kWarpgroups >> row_groups / 2; }
  // Warps of a warpgroup that share its rows, by units in turn: 4, 2 or 1; 1 for wgmma.
  DSV4_HD constexpr int warps_of_rows() const {
    return cells > kFewCells ? 1 : rows <= 16 ? 4 : rows <= 32 ? 2 : 1;
  }
  DSV4_HD constexpr int sums_rows() const { return kGroupRows / warps_of_rows(); }
  // The first stage of share i; shares are numbered by rank, then by warpgroup.
  DSV4_HD constexpr int first_stage(int share) const { return row_stages * share / kShares; }
  DSV4_HD constexpr int rank_first_unit(int rank) const {
    return first_stage(rank * k_groups()) * stage_units;
  }
  DSV4_HD constexpr int rank_units() const {  // at most
    return (row_stages + ranks - 1) / ranks * stage_units;
  }
};

// Columns of a product of so many rows of x.
constexpr int columns_of(int cells) {
  return cells < 8 ? 8 : cells;
}
// Copies of the table for K = 5 (weights/kbit_lookup.cuh).
constexpr int table_copies(int cells) {
  return cells <= 8 ? 32 : 16;
}
constexpr int table_bytes(int bits, int cells) {
  return bits == 5 ? 1024 * 4 * table_copies(cells) : bits == 3 ? 16 << 10 : 32 << 10;
}
// CTAs that the registers of an SM have room for: of two kernels that follow each other, if shared
// memory has.
constexpr int ctas_of_sm(int bits, int cells) {
  return bits < 5 && cells <= kFewCells ? 2 : 1;
}

// Offsets in shared memory, in bytes. The table is at 0.
struct Layout {
  int x, ring, stage_bytes, sums, sums_pitch, barriers, copies, bytes;

  DSV4_HD constexpr Layout(int bits, const Plan& p)
      : x(table_bytes(bits, p.cells)),
        // wgmma reads cells that do not exist: those of the following columns, or up to 512 bytes.
        ring(x + p.rank_units() * 16 * 16 * p.cells + (p.cells > kFewCells ? 16 * kMaxCells : 0)),
        stage_bytes(bytes_of_stage(bits, p)),
        sums(ring + kWarpgroups * p.stages * stage_bytes),
        sums_pitch(p.row_groups * p.sums_rows() + 4),
        barriers(sums + p.k_groups() * p.warps_of_rows() * p.cells * sums_pitch * 4),
        copies(barriers + 2 * kWarpgroups * kMaxStages * 8),
        bytes(copies + kWarpgroups * 32 + 16) {}

  DSV4_HD static constexpr int bytes_of_stage(int bits, const Plan& p) {
    return (p.rows * p.stage_units * 16 * bits + 127) / 128 * 128;
  }
};

// The rows of `plan` for its clusters, rounds and row_groups.
void divide_rows(int64_t n, Plan& plan);
// The fastest by estimate.
Plan make_plan(const Shape& shape, int num_sms);

}  // namespace dsv4::gemm::kbit_rows
