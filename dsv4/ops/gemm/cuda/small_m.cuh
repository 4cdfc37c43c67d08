// The tensor core kernels of problem.h for small M, tiles of 8 or 16 rows: weights are
// decoded in registers, directly into the operand of the mma instruction.
//
// As in gemv.cuh, a CTA keeps the tile's rows of x in shared memory and computes rows of the weight
// in passes, 16 rows per warp, and loads the units of the next step early. In each step, lane
// 4 g + j has units j and j + 4 of weight rows g and g + 8. An instruction may take any 16 columns,
// as long as both operands take the same ones: it takes 4 neighboring columns of each of 4 units.
//
//   A (16 rows of weights)   a0, a2 = columns 4 i .. 4 i + 3 of row g; a1, a3 = of row g + 8
//   B (8 rows of x)          b0, b1 = the same columns of row g of x
//   C                        c0, c1 = weight row g, x rows 2 j, 2 j + 1; c2, c3 = weight row g + 8
//
// Operands are bf16 or f16, exact or rounded as mma.cuh says.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/cuda/operand.cuh"
#include "dsv4/ops/gemm/cuda/tile.cuh"
#include "dsv4/ops/gemm/weights/decode.cuh"

namespace dsv4::gemm::cuda {

inline constexpr int kSmallMWarps = 16, kSmallMThreads = kSmallMWarps * kWarp;
inline constexpr int kSmallMRows = 16;  // of the weight, per warp and pass
inline constexpr int kLaneUnits = 2;    // of a weight row, in a step
inline constexpr int kStepUnits = 4 * kLaneUnits;

// x of a tile: [piece][m][unit] quads of 8 columns. The distance between rows is 4 modulo 8 quads,
// so the 4 units of 2 rows, which are read together, are free of bank conflicts.
struct StagedRows {
  int stride;  // quads from one row to the next
  DSV4_HD explicit StagedRows(int units) : stride(static_cast<int>(align_up(units, 8)) + 4) {}
};

template <class Decode, int kTile>
DSV4_HD constexpr int staged_quads(const StagedRows& staged) {
  return Decode::kColumns / 8 * kTile * staged.stride;
}

template <class Decode, class X, int kTile>
__device__ inline void stage_x(const Problem& p, const Tile& tile, const StagedRows& staged,
                               uint4* x) {
  constexpr int kPieces = Decode::kColumns / 8;
  for (int m = 0; m < kTile; ++m) {
    const bool exists = m < tile.rows;
    const int64_t row = exists ? x_row(p, tile.first_row + m) : 0;
    for (int i = threadIdx.x; i < p.k / 8; i += kSmallMThreads) {
      float v[8] = {};
      if (exists) load_x8(p, row, tile.projection, i * 8, v);
      x[(i % kPieces * kTile + m) * staged.stride + i / kPieces] = operand_quad<X>(v);
    }
  }
}

// A piece as four words of two operands each, scale included.
template <class Decode, class X>
__device__ inline void operand_piece(const typename Decode::Codes& codes, int piece,
                                     const float* table, uint32_t (&out)[4]) {
  float w[8];
  Decode::piece(codes, piece, table, w);
  const float scale = Decode::scale(codes, piece);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Decode::kScaled > 0) w[2 * i] *= scale, w[2 * i + 1] *= scale;
    out[i] = operand_pair<X>(w[2 * i], w[2 * i + 1]);
  }
}

// sums += one unit of weight rows g and g + 8 times x. x: piece 0 of row g, this lane's unit
template <class Decode, class X, int kTile>
__device__ inline void multiply_unit_mma(const typename Decode::Codes (&rows)[2], const uint4* x,
                                         const StagedRows& staged, const float* table,
                                         float (&sums)[kTile / 8][4]) {
#pragma unroll
  for (int piece = 0; piece < Decode::kColumns / 8; ++piece) {
    uint32_t low[4], high[4];
    operand_piece<Decode, X>(rows[0], piece, table, low);
    operand_piece<Decode, X>(rows[1], piece, table, high);
    const uint32_t a0[4] = {low[0], high[0], low[1], high[1]};
    const uint32_t a1[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      const uint4 b = x[(piece * kTile + n * 8) * staged.stride];
      multiply_operands<X>(sums[n], a0, b.x, b.y);
      multiply_operands<X>(sums[n], a1, b.z, b.w);
    }
  }
}

// Adds the sums of `split` warps in ascending order, in the first of them.
template <int kValues>
__device__ inline void add_splits(float* values, int split, float* shared) {
  if (split == 1) return;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto at = [&](int of_warp, int i) { return (of_warp * kValues + i) * kWarp + lane; };
#pragma unroll
  for (int i = 0; i < kValues; ++i) shared[at(warp, i)] = values[i];
  __syncthreads();
  if (warp % split == 0) {
    for (int s = 1; s < split; ++s) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] += shared[at(warp + s, i)];
    }
  }
  __syncthreads();
}

template <int kTile>
__device__ inline void store_small_m(const Problem& p, const Tile& tile, int first_row,
                                     float scale2, const float (&sums)[kTile / 8][4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + lane / 4 + i / 2 * 8, m = n * 8 + lane % 4 * 2 + i % 2;
      if (row < p.n && m < tile.rows) store_out(p, tile, m, row, sums[n][i] * scale2);
    }
  }
}

// grid: tiles, then CTAs that share the passes, then projections
template <class Decode, class X, int kTile>
__global__ void __launch_bounds__(kSmallMThreads, 1)
    small_m_kernel(const __grid_constant__ Problem p, int split, int passes) {
  ptx::pdl_start();
  auto* const staged_x = reinterpret_cast<uint4*>(ptx::dynamic_smem());
  __shared__ float table[Decode::kTable + 1], shared_sums[kTile / 8 * 4 * kSmallMThreads];
  const Tile tile = this_tile(p);
  if (tile.rows == 0) return;
  const Matrix matrix = matrix_of(p, tile);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int units = p.k / Decode::kColumns, steps = (units + kStepUnits - 1) / kStepUnits;
  const StagedRows staged(units);
  const auto first_row = [&](int pass) {
    return (pass * (kSmallMWarps / split) + warp / split) * kSmallMRows;
  };
  const auto unit_of = [&](int step, int u) { return step * kStepUnits + u * 4 + lane % 4; };
  typename Decode::Loaded next[kLaneUnits][2];
  const auto fetch = [&](int pass, int step) {
    if (pass >= passes) return;
    const int row = first_row(pass) + lane / 4;
#pragma unroll
    for (int u = 0; u < kLaneUnits; ++u) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int unit = unit_of(step, u);  // units past the end are zeros
        next[u][r] = unit < units ? Decode::load(matrix, min(row + r * 8, p.n - 1), unit)
                                  : typename Decode::Loaded{};
      }
    }
  };

  int pass = static_cast<int>(blockIdx.y);
  fetch(pass, warp % split);
  for (int i = threadIdx.x; i < Decode::kTable; i += kSmallMThreads) table[i] = matrix.codebook[i];
  stage_x<Decode, X, kTile>(p, tile, staged, staged_x);
  __syncthreads();
  for (; pass < passes; pass += static_cast<int>(gridDim.y)) {
    float sums[kTile / 8][4] = {};
    for (int step = warp % split; step < steps; step += split) {
      typename Decode::Codes codes[kLaneUnits][2];
#pragma unroll
      for (int u = 0; u < kLaneUnits; ++u) {
#pragma unroll
        for (int r = 0; r < 2; ++r) codes[u][r] = Decode::codes(next[u][r], matrix);
      }
      const bool last = step + split >= steps;
      fetch(last ? pass + static_cast<int>(gridDim.y) : pass, last ? warp % split : step + split);
#pragma unroll
      for (int u = 0; u < kLaneUnits; ++u) {
        const int unit = min(unit_of(step, u), units - 1);  // past the end: zero weights
        multiply_unit_mma<Decode, X, kTile>(codes[u], staged_x + lane / 4 * staged.stride + unit,
                                            staged, table, sums);
      }
    }
    add_splits<kTile / 8 * 4>(&sums[0][0], split, shared_sums);
    if (warp % split == 0) store_small_m<kTile>(p, tile, first_row(pass), matrix.scale2, sums);
  }
}

template <class Decode, class X, int kTile>
void launch_small_m(Device& device, const Problem& p) {
  const int units = p.k / Decode::kColumns, steps = (units + kStepUnits - 1) / kStepUnits;
  const int64_t columns = tile_slots(p) * p.projections;
  if (columns == 0) return;
  // Warps share rows until every SM has a CTA.
  const int64_t sms = device.info().num_sms;
  const auto passes_of = [&](int split) {
    const int rows = kSmallMWarps / split * kSmallMRows;
    return (p.n + rows - 1) / rows;
  };
  int split = 1;
  while (split < kSmallMWarps && 2 * split <= steps && passes_of(split) * columns < sms) split *= 2;
  const int64_t passes = passes_of(split);
  // Listed tiles may be absent or short: more CTAs with fewer passes each balance the load.
  const int64_t ctas = (p.tiles == nullptr ? 1 : 4) * sms;
  const int64_t cta_passes = (passes * columns + ctas - 1) / ctas;
  launch(device, "quant_gemm_small_m", small_m_kernel<Decode, X, kTile>,
         {.grid = tile_slots(p),
          .block = kSmallMThreads,
          .grid_y = (passes + cta_passes - 1) / cta_passes,
          .grid_z = p.projections,
          .shared = int64_t{staged_quads<Decode, kTile>(StagedRows(units))} * 16},
         p, split, passes);
}

template <class Decode>
void small_m(Device& device, const Problem& p) {
  with_operand<Decode>(p, [&]<class X>(OperandType<X>) {
    p.tile_m == 8 ? launch_small_m<Decode, X, 8>(device, p)
                  : launch_small_m<Decode, X, 16>(device, p);
  });
}

}  // namespace dsv4::gemm::cuda
