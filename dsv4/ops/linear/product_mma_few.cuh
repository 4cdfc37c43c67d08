// The tensor core kernels of product_cuda.h for 8 or 16 pairs a tile: weights are decoded in
// registers, straight into the operand of the instruction.
//
// As in product_kernel.cuh a block keeps its rows of x in shared memory and goes through rows of
// the matrix in passes, 16 rows a warp, with the units of the next step on their way. Lane 4 g + j
// has units of columns j, j + 4 of rows g and g + 8 in each step. The 16 columns of an instruction
// are any, as long as both operands agree: each takes 4 neighbouring columns of each of 4 units.
//
//   A (16 rows of weights)   a0, a2 = columns 4 i .. 4 i + 3 of row g, a1, a3 = of row g + 8
//   B (8 pairs of x)         b0, b1 = the same columns of pair g
//   C                        c0, c1 = row g, pairs 2 j, 2 j + 1; c2, c3 = row g + 8
//
// Operands are bf16, exact or rounded as product_mma.cuh says.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/ops/linear/product_parts.cuh"

namespace dsv4::product {

inline constexpr int kFewWarps = 16, kFewThreads = kFewWarps * kWarp;
inline constexpr int kFewRows = 16;   // of a warp in a pass
inline constexpr int kLaneUnits = 2;  // of a row in a step
inline constexpr int kStepUnits = 4 * kLaneUnits;

// x of a tile: [piece][pair][unit] quads of 8 columns. The distance between pairs is 4 modulo 8
// quads, so that the 4 units of 2 pairs, which are read together, meet in no bank.
struct FewPlanes {
  int pair;  // quads from pair to pair
  DSV4_HD explicit FewPlanes(int units) : pair(static_cast<int>(align_up(units, 8)) + 4) {}
};

template <class Decode, int kTile>
__device__ inline void fill_few(const Product& p, const Tile& tile, const FewPlanes& planes,
                                uint4* x) {
  constexpr int kPieces = Decode::kColumns / 8;
  for (int pair = 0; pair < kTile; ++pair) {
    const bool there = pair < tile.count;
    const int64_t row = there ? x_row(p, tile.first + pair) : 0;
    for (int i = threadIdx.x; i < p.k / 8; i += kFewThreads) {
      float v[8] = {};
      if (there) load_x8(p, row, tile.part, i * 8, v);
      uint4 quad;
      quad.x = ptx::as_bits(__floats2bfloat162_rn(v[0], v[1]));
      quad.y = ptx::as_bits(__floats2bfloat162_rn(v[2], v[3]));
      quad.z = ptx::as_bits(__floats2bfloat162_rn(v[4], v[5]));
      quad.w = ptx::as_bits(__floats2bfloat162_rn(v[6], v[7]));
      x[(i % kPieces * kTile + pair) * planes.pair + i / kPieces] = quad;
    }
  }
}

// Four bf16 pairs of a piece, scale included.
template <class Decode>
__device__ inline void bf16_piece(const typename Decode::Codes& codes, int piece,
                                  const float* table, uint32_t (&out)[4]) {
  float w[8];
  Decode::piece(codes, piece, table, w);
  const float scale = Decode::scale(codes, piece);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Decode::kScaled > 0) w[2 * i] *= scale, w[2 * i + 1] *= scale;
    out[i] = ptx::as_bits(__floats2bfloat162_rn(w[2 * i], w[2 * i + 1]));
  }
}

// sums += one unit of rows g and g + 8 times x. x: piece 0 of pair g, this lane's unit
template <class Decode, int kTile>
__device__ inline void multiply_few(const typename Decode::Codes (&rows)[2], const uint4* x,
                                    const FewPlanes& planes, const float* table,
                                    float (&sums)[kTile / 8][4]) {
#pragma unroll
  for (int piece = 0; piece < Decode::kColumns / 8; ++piece) {
    uint32_t low[4], high[4];
    bf16_piece<Decode>(rows[0], piece, table, low);
    bf16_piece<Decode>(rows[1], piece, table, high);
    const uint32_t a0[4] = {low[0], high[0], low[1], high[1]};
    const uint32_t a1[4] = {low[2], high[2], low[3], high[3]};
#pragma unroll
    for (int n = 0; n < kTile / 8; ++n) {
      const uint4 b = x[(piece * kTile + n * 8) * planes.pair];
      ptx::mma_bf16(sums[n], a0, b.x, b.y);
      ptx::mma_bf16(sums[n], a1, b.z, b.w);
    }
  }
}

// The sums of `split` warps, in ascending order, in the first of them.
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
__device__ inline void store_few(const Product& p, const Tile& tile, int first_row, float scale2,
                                 const float (&sums)[kTile / 8][4]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + lane / 4 + i / 2 * 8, pair = n * 8 + lane % 4 * 2 + i % 2;
      if (row < p.n && pair < tile.count) store_out(p, tile, pair, row, sums[n][i] * scale2);
    }
  }
}

// grid: x tiles, y blocks that share the passes, z parts
template <class Decode, int kTile>
__global__ void __launch_bounds__(kFewThreads, 1)
    few_kernel(const __grid_constant__ Product p, int split, int passes) {
  extern __shared__ uint4 staged_x[];
  __shared__ float table[Decode::kTable + 1], shared_sums[kTile / 8 * 4 * kFewThreads];
  const Tile tile = this_tile(p);
  if (tile.count == 0) return;
  const Matrix matrix = matrix_of(p, tile);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int units = p.k / Decode::kColumns, steps = (units + kStepUnits - 1) / kStepUnits;
  const FewPlanes planes(units);
  const auto first_row = [&](int pass) {
    return (pass * (kFewWarps / split) + warp / split) * kFewRows;
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
        const int unit = unit_of(step, u);  // units beyond the end are zeros
        next[u][r] = unit < units ? Decode::load(matrix, min(row + r * 8, p.n - 1), unit)
                                  : typename Decode::Loaded{};
      }
    }
  };

  int pass = static_cast<int>(blockIdx.y);
  fetch(pass, warp % split);
  for (int i = threadIdx.x; i < Decode::kTable; i += kFewThreads) table[i] = matrix.codebook[i];
  fill_few<Decode, kTile>(p, tile, planes, staged_x);
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
        const int unit = min(unit_of(step, u), units - 1);  // beyond the end: zeros times anything
        multiply_few<Decode, kTile>(codes[u], staged_x + lane / 4 * planes.pair + unit, planes,
                                    table, sums);
      }
    }
    add_splits<kTile / 8 * 4>(&sums[0][0], split, shared_sums);
    if (warp % split == 0) store_few<kTile>(p, tile, first_row(pass), matrix.scale2, sums);
  }
}

template <class Decode, int kTile>
void launch_few(Device& device, const Product& p) {
  const int units = p.k / Decode::kColumns, steps = (units + kStepUnits - 1) / kStepUnits;
  const int64_t columns = tile_slots(p) * p.parts;
  if (columns == 0) return;
  // Warps share rows until every processor has a block.
  const int64_t processors = device.info().processors;
  const auto passes_of = [&](int split) {
    const int rows = kFewWarps / split * kFewRows;
    return (p.n + rows - 1) / rows;
  };
  int split = 1;
  while (split < kFewWarps && 2 * split <= steps && passes_of(split) * columns < processors)
    split *= 2;
  const int64_t passes = passes_of(split);
  // Tiles of a list may be empty or short: finer portions even out.
  const int64_t blocks = (p.tiles == nullptr ? 1 : 4) * processors;
  const int64_t turns = (passes * columns + blocks - 1) / blocks;
  launch(device, "product_few", few_kernel<Decode, kTile>,
         {.grid = tile_slots(p),
          .block = kFewThreads,
          .grid_y = (passes + turns - 1) / turns,
          .grid_z = p.parts,
          .shared = int64_t{Decode::kColumns / 8} * kTile * FewPlanes(units).pair * 16},
         p, split, passes);
}

template <class Decode>
void launch_few_decoder(Device& device, const Product& p) {
  p.tile_pairs == 8 ? launch_few<Decode, 8>(device, p) : launch_few<Decode, 16>(device, p);
}

}  // namespace dsv4::product
