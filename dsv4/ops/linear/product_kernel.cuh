// The vector kernels of product_cuda.h: decoding in registers, f32 FMA, for 1 to 8 pairs a tile.
//
// A block takes a tile, keeps its rows of x in shared memory, and goes through rows of the matrix
// in passes. In a pass each warp has kRows rows, and each lane every 32nd unit of columns: a step.
// The units of the next step are on their way while those of this one are multiplied.
//
// Few rows are not enough work for the device: then `split` warps share kRows rows, each with every
// split-th step, and add their sums in the end.
//
// The order of additions of one output is fixed by the format, k and split: units of a lane in
// ascending order (the columns under one scale first), lanes as a butterfly, splits in ascending
// order. The tile has no part in it.

#pragma once

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/linear/product_cuda.h"
#include "dsv4/ops/linear/product_parts.cuh"

namespace dsv4::product {

// Rows of a warp in a pass: what the registers hold.
template <class Decode, int kTile>
inline constexpr int kRows = kTile >= 4 && Decode::kScaled > 0 ? 2 : 4;
inline constexpr int kMaxSplit = 8;
// Large tiles fill the registers and shared memory of a processor with one block.
template <int kTile>
inline constexpr int kWarps = kTile == 8 ? 16 : 8;
template <int kTile>
inline constexpr int kBlocksPerProcessor = kTile == 8 ? 1 : 2;

// 8 values of x as they lie in shared memory: one or two 16-byte quads.
template <class X>
struct Piece {
  static constexpr int kQuads = static_cast<int>(sizeof(X)) / 2;

  static __device__ void store(uint4* at, const float (&v)[8]) {
    if constexpr (kQuads == 1) {
      __nv_bfloat162 pairs[4];
      for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      *at = *reinterpret_cast<const uint4*>(pairs);
    } else {
      for (int q = 0; q < 2; ++q)
        reinterpret_cast<float4*>(at)[q] =
            make_float4(v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]);
    }
  }
  static __device__ void load(const uint4* at, float (&v)[8]) {
    if constexpr (kQuads == 1) {
      const uint4 quad = *at;
      for (int i = 0; i < 4; ++i) widen_bf16x2(word_of(quad, i), v + 2 * i);
    } else {
      for (int q = 0; q < 2; ++q) {
        const float4 quad = reinterpret_cast<const float4*>(at)[q];
        v[4 * q] = quad.x, v[4 * q + 1] = quad.y, v[4 * q + 2] = quad.z, v[4 * q + 3] = quad.w;
      }
    }
  }
};

// x of a tile: [unit][pair][piece] quads. The distance between units is odd, so that the lanes of a
// warp, on neighbouring units, meet in no bank.
template <class Decode, class X, int kTile>
struct Staged {
  static constexpr int kPieces = Decode::kColumns / 8;
  static constexpr int kUnit = (kTile * kPieces * Piece<X>::kQuads) | 1;  // quads

  static constexpr int64_t bytes(int64_t k) { return k / Decode::kColumns * kUnit * 16; }
  static __device__ int at(int unit, int pair, int piece) {
    return unit * kUnit + (pair * kPieces + piece) * Piece<X>::kQuads;
  }
  // Rows that a short tile lacks are zero.
  static __device__ void fill(const Product& p, const Tile& tile, uint4* x) {
    const int pieces = p.k / 8;
    for (int pair = 0; pair < kTile; ++pair) {
      const bool there = pair < tile.count;
      const int64_t row = there ? x_row(p, tile.first + pair) : 0;
      for (int i = threadIdx.x; i < pieces; i += kWarps<kTile> * kWarp) {
        float v[8] = {};
        if (there) load_x8(p, row, tile.part, i * 8, v);
        Piece<X>::store(x + at(i / kPieces, pair, i % kPieces), v);
      }
    }
  }
};

// acc[r][t] += columns of one unit of each row times x; columns that share a scale are summed
// first.
template <class Decode, class X, int kTile, int kRows>
__device__ inline void multiply_unit(const Matrix& matrix,
                                     const typename Decode::Loaded (&loaded)[kRows], const uint4* x,
                                     const float* table, float (&acc)[kRows][kTile]) {
  using Stage = Staged<Decode, X, kTile>;
  typename Decode::Codes codes[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) codes[r] = Decode::codes(loaded[r], matrix);
  float part[kRows][kTile];
#pragma unroll
  for (int piece = 0; piece < Stage::kPieces; ++piece) {
    float w[kRows][8];
#pragma unroll
    for (int r = 0; r < kRows; ++r) Decode::piece(codes[r], piece, table, w[r]);
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      float v[8];
      Piece<X>::load(x + Stage::at(0, t, piece), v);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if constexpr (Decode::kScaled == 0) {
#pragma unroll
          for (int j = 0; j < 8; ++j) acc[r][t] = fmaf(v[j], w[r][j], acc[r][t]);
        } else {
          float sum = piece % Decode::kScaled == 0 ? 0.f : part[r][t];
#pragma unroll
          for (int j = 0; j < 8; ++j) sum = fmaf(v[j], w[r][j], sum);
          part[r][t] = sum;
          if (piece % Decode::kScaled == Decode::kScaled - 1)
            acc[r][t] = fmaf(sum, Decode::scale(codes[r], piece), acc[r][t]);
        }
      }
    }
  }
}

// The sums over lanes and then over splits; lane r * kTile + t of the first split gets row r, pair
// t. shared: a float for each thread, not used again before the next barrier but one
template <int kTile, int kRows>
__device__ inline float reduce(const float (&acc)[kRows][kTile], int split, float* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  float mine = 0;
#pragma unroll
  for (int i = 0; i < kRows * kTile; ++i) {
    const float sum = warp_sum(acc[i / kTile][i % kTile]);
    if (lane == i) mine = sum;
  }
  if (split == 1) return mine;
  shared[threadIdx.x] = mine;
  __syncthreads();
  if (warp % split == 0)
    for (int s = 1; s < split; ++s) mine += shared[threadIdx.x + s * kWarp];
  return mine;
}

// grid: x tiles, y blocks that share the passes, z parts
template <class Decode, class X, int kTile>
__global__ void __launch_bounds__(kWarps<kTile>* kWarp, kBlocksPerProcessor<kTile>)
    product_kernel(const __grid_constant__ Product p, int split, int passes) {
  using Stage = Staged<Decode, X, kTile>;
  constexpr int kThreads = kWarps<kTile> * kWarp, kRows = product::kRows<Decode, kTile>;
  extern __shared__ uint4 staged_x[];
  __shared__ float table[Decode::kTable + 1], sums[2][kThreads];
  const Tile tile = this_tile(p);
  if (tile.count == 0) return;
  const Matrix matrix = matrix_of(p, tile);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int units = p.k / Decode::kColumns, steps = (units + kWarp - 1) / kWarp;
  const auto first_row = [&](int pass) {
    return (pass * (kWarps<kTile> / split) + warp / split) * kRows;
  };
  typename Decode::Loaded next[kRows];
  const auto fetch = [&](int pass, int step) {
    const int unit = step * kWarp + lane;
    if (pass >= passes || unit >= units) return;
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      next[r] = Decode::load(matrix, min(first_row(pass) + r, p.n - 1), unit);
  };

  int pass = static_cast<int>(blockIdx.y);
  fetch(pass, warp % split);
  for (int i = threadIdx.x; i < Decode::kTable; i += kThreads) table[i] = matrix.codebook[i];
  Stage::fill(p, tile, staged_x);
  __syncthreads();
  for (int turn = 0; pass < passes; pass += gridDim.y, turn ^= 1) {
    float acc[kRows][kTile] = {};
    for (int step = warp % split; step < steps; step += split) {
      typename Decode::Loaded loaded[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) loaded[r] = next[r];
      const bool last = step + split >= steps;
      fetch(last ? pass + static_cast<int>(gridDim.y) : pass, last ? warp % split : step + split);
      const int unit = step * kWarp + lane;
      if (unit < units)
        multiply_unit<Decode, X, kTile, kRows>(matrix, loaded, staged_x + Stage::at(unit, 0, 0),
                                               table, acc);
    }
    const float sum = reduce<kTile, kRows>(acc, split, sums[turn]);
    const int row = first_row(pass) + lane / kTile, pair = lane % kTile;
    if (warp % split == 0 && lane < kRows * kTile && row < p.n && pair < tile.count)
      store_out(p, tile, pair, row, sum * matrix.scale2);
  }
}

// How many warps share their rows: fixed by the shape, never by the number of tokens. Enough for
// two blocks of 8 warps on each of some 100 processors.
template <class Decode>
int split_of(const Product& p) {
  constexpr int kWantedBlocks = 200;
  const int steps = (p.k / Decode::kColumns + kWarp - 1) / kWarp;
  constexpr int kBlockRows = 32;
  const int blocks = (p.rows_per_token + kBlockRows - 1) / kBlockRows;
  int split = 1;
  while (split < kMaxSplit && 2 * split <= steps && blocks * split < kWantedBlocks) split *= 2;
  return split;
}

template <class Decode, class X, int kTile>
void launch_product(Device& device, const Product& p) {
  const int split = split_of<Decode>(p);
  const int rows = kWarps<kTile> / split * kRows<Decode, kTile>;
  const int64_t passes = (p.n + rows - 1) / rows, columns = tile_slots(p) * p.parts;
  if (columns == 0) return;
  // As many blocks as run at a time, with equal numbers of passes. Where that does not come out
  // even, because tiles are many or may be missing, four times as many.
  const int64_t at_a_time = device.info().processors * kBlocksPerProcessor<kTile>;
  const bool even = 8 * columns <= at_a_time && (p.tiles == nullptr || p.tile_pairs == 1);
  const int64_t blocks = even ? at_a_time : 4 * at_a_time;
  const int64_t turns = (passes * columns + blocks - 1) / blocks;
  launch(device, "product", product_kernel<Decode, X, kTile>,
         {.grid = tile_slots(p),
          .block = kWarps<kTile> * kWarp,
          .grid_y = (passes + turns - 1) / turns,
          .grid_z = p.parts,
          .shared = Staged<Decode, X, kTile>::bytes(p.k)},
         p, split, passes);
}

// f32 activations are for kExact, where speed matters less: two tile sizes.
template <class Decode>
void launch_decoder(Device& device, const Product& p) {
  if (p.x_dtype == DType::kF32) {
    return p.tile_pairs == 1 ? launch_product<Decode, float, 1>(device, p)
                             : launch_product<Decode, float, 4>(device, p);
  }
  switch (p.tile_pairs) {
    case 1:
      return launch_product<Decode, bf16, 1>(device, p);
    case 2:
      return launch_product<Decode, bf16, 2>(device, p);
    case 4:
      return launch_product<Decode, bf16, 4>(device, p);
    default:
      return launch_product<Decode, bf16, 8>(device, p);
  }
}

}  // namespace dsv4::product
