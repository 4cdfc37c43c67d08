// How a product of up to 64 rows of x with a k-bit weight in rows is divided over a Hopper GPU
// (kbit_rows.h). Host code and device code without CUDA.
//
//   unit     128 columns of the weight; a stage of a ring has `stage_units` of them (an odd number:
//            rows of a stage are then free of bank conflicts)
//   share    the stages that a warpgroup has of its rows: shares of K are `ranks` x `k_groups`
//   CTA      4 warpgroups: row_groups x k_groups
//   cluster  `ranks` CTAs with the same rows; each has its part of the columns, and of x
//   round    row_groups x `rows` rows of a cluster; a cluster has every clusters-th
//
// The number of shares decides the order of additions. It depends on the shape of the weight, on
// the GPU and on the rows of x, rounded up to a power of two of at most 32.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::gemm::kbit_rows {

inline constexpr int kUnit = 128;
inline constexpr int kWarpgroups = 4, kGroupThreads = 128, kThreads = kWarpgroups * kGroupThreads;
inline constexpr int kGroupRows = 64;  // of a warpgroup, at most
// Larger clusters do not fill an H200 in one wave.
inline constexpr int kMaxRanks = 2;
inline constexpr int kMaxStages = 4, kMaxStageUnits = 5;
inline constexpr int kMaxCells = 32;  // rows of x of a CTA
inline constexpr int64_t kMaxTokens = 64;

struct Shape {
  int bits = 0;
  int64_t n = 0, k = 0, tokens = 0;
};

struct Plan {
  int cells = 0;       // rows of x of a CTA: 1, 2, 4, .. 32; 0: no plan fits
  int ranks = 1;       // CTAs of a cluster
  int row_groups = 1;  // warpgroups with different rows
  int rows = 0;        // of a warpgroup in a round
  int clusters = 0, rounds = 0;
  int units = 0, stage_units = 1, stages = 0;

  DSV4_HD constexpr int k_groups() const { return kWarpgroups / row_groups; }
  DSV4_HD constexpr int all_stages() const { return (units + stage_units - 1) / stage_units; }
  // The first stage of share i; shares are numbered by rank, then by warpgroup.
  DSV4_HD constexpr int first_stage(int share) const {
    return all_stages() * share / (ranks * k_groups());
  }
  DSV4_HD constexpr int rank_first_unit(int rank) const {
    return first_stage(rank * k_groups()) * stage_units;
  }
  DSV4_HD constexpr int rank_units() const {  // at most
    return (all_stages() + ranks - 1) / ranks * stage_units;
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
  return bits == 5 ? 1024 * 4 * table_copies(cells) : 64 << 10;
}

// Offsets in shared memory, in bytes. The table is at 0.
struct Layout {
  int x, ring, stage_bytes, sums, sums_pitch, barriers, book, bytes;

  DSV4_HD constexpr Layout(int bits, const Plan& p)
      : x(table_bytes(bits, p.cells)),
        // Cells that do not exist are read: those of the following columns, or up to 512 bytes.
        ring(x + p.rank_units() * 16 * 16 * p.cells + 16 * kMaxCells),
        stage_bytes((p.rows * p.stage_units * 16 * bits + 127) / 128 * 128),
        sums(ring + kWarpgroups * p.stages * stage_bytes),
        sums_pitch(p.row_groups * kGroupRows + 4),
        barriers(sums + p.k_groups() * p.cells * sums_pitch * 4),
        book(barriers + 2 * kWarpgroups * kMaxStages * 8),
        bytes(book + 64) {}
};

// The fastest by estimate.
Plan make_plan(const Shape& shape, int num_sms);

}  // namespace dsv4::gemm::kbit_rows
