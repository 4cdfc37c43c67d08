// The vector kernels of product_cuda.h: decoding in registers, f32 FMA, for 1 to 8 pairs a tile.
//
// A block takes a tile and some rows of its matrix; a warp takes kRows rows at a time, and each
// lane every 32nd unit of columns. x lies in shared memory, a chunk of columns at a time. Few rows
// are not enough work for the device: then `split` warps share the rows of one warp, each with
// every split-th step of 32 units, and add their sums in the end.
//
// The order of additions of one output is fixed by the format, k and split: units of a lane in
// ascending order, lanes as a butterfly, splits in ascending order. Neither the tile nor the chunk
// has a part in it.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/linear/product_cuda.h"
#include "dsv4/ops/linear/product_parts.cuh"

namespace dsv4::product {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * kWarp;
inline constexpr int kRows = 4;  // of a warp
// Columns of x in shared memory: a multiple of every step, 16 to 64 KB.
template <class X, int kTile>
inline constexpr int kChunkColumns = kTile * sizeof(X) <= 4 ? 8192 : 4096;
// Blocks per 8 warps of rows that a call should have (132 processors, several blocks each).
inline constexpr int64_t kWantedBlocks = 384;

// 8 values of x, as they lie in shared memory: 16-byte quads, each in a plane of its own so that
// the lanes of a warp, on neighbouring units, read neighbouring quads.
template <class X>
struct Piece {
  static constexpr int kQuads = static_cast<int>(sizeof(X)) / 2;

  static __device__ void store(uint4* at, int plane, const float (&v)[8]) {
    if constexpr (sizeof(X) == 2) {
      __nv_bfloat162 pairs[4];
      for (int i = 0; i < 4; ++i) pairs[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
      *at = *reinterpret_cast<const uint4*>(pairs);
    } else {
      at[0] = *reinterpret_cast<const uint4*>(v);
      at[plane] = *reinterpret_cast<const uint4*>(v + 4);
    }
  }
  static __device__ void load(const uint4* at, int plane, float (&v)[8]) {
    const uint4 quad = *at;
    if constexpr (sizeof(X) == 2) {
      widen_bf16x2(quad.x, v), widen_bf16x2(quad.y, v + 2);
      widen_bf16x2(quad.z, v + 4), widen_bf16x2(quad.w, v + 6);
    } else {
      *reinterpret_cast<uint4*>(v) = quad;
      *reinterpret_cast<uint4*>(v + 4) = at[plane];
    }
  }
};

// x of a chunk: value (pair, unit, piece) at ((pair * pieces + piece) * quads) planes of one quad
// for each unit.
template <class Decode, class X, int kTile>
struct Staged {
  static constexpr int kPieces = Decode::kColumns / 8;
  static constexpr int kColumns = kChunkColumns<X, kTile>;
  static constexpr int kPlane = kColumns / Decode::kColumns;  // quads
  static constexpr int kBytes = kTile * kColumns * static_cast<int>(sizeof(X));

  static __device__ int at(int pair, int piece, int unit) {
    return (pair * kPieces + piece) * Piece<X>::kQuads * kPlane + unit;
  }
  // Columns [first, first + columns) of the tile's rows; the rows that a short tile lacks are zero.
  static __device__ void fill(const Product& p, const Tile& tile, int first, int columns,
                              uint4* x) {
    const int pieces = columns / 8;
    for (int i = threadIdx.x; i < kTile * pieces; i += kThreads) {
      const int pair = i / pieces, piece = i % pieces;
      float v[8] = {};
      if (pair < tile.count)
        load_x8(p, x_row(p, tile.first + pair), tile.part, first + piece * 8, v);
      Piece<X>::store(x + at(pair, piece % kPieces, piece / kPieces), kPlane, v);
    }
  }
};

// acc[r][t] += columns of one unit of each row times x
template <class Decode, class X, int kTile>
__device__ inline void multiply_unit(const typename Decode::Loaded (&loaded)[kRows], const uint4* x,
                                     int unit, const float* table, float (&acc)[kRows][kTile]) {
  using Stage = Staged<Decode, X, kTile>;
  typename Decode::Codes codes[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) codes[r] = Decode::codes(loaded[r]);
#pragma unroll
  for (int piece = 0; piece < Stage::kPieces; ++piece) {
    float w[kRows][8];
#pragma unroll
    for (int r = 0; r < kRows; ++r) Decode::piece(codes[r], piece, table, w[r]);
#pragma unroll
    for (int t = 0; t < kTile; ++t) {
      float v[8];
      Piece<X>::load(x + Stage::at(t, piece, unit), Stage::kPlane, v);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[r][t] = fmaf(v[j], w[r][j], acc[r][t]);
      }
    }
  }
}

// The sums over lanes and then over splits; lane r * kTile + t of the first split gets row r, pair
// t.
template <int kTile>
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

// grid: x tiles, y blocks of kWarps / split * kRows rows, z parts
template <class Decode, class X, int kTile>
__global__ void __launch_bounds__(kThreads)
    product_kernel(const __grid_constant__ Product p, int split) {
  using Stage = Staged<Decode, X, kTile>;
  extern __shared__ uint4 staged_x[];
  __shared__ float table[Decode::kTable + 1], sums[kThreads];
  const Tile tile = this_tile(p);
  if (tile.count == 0) return;
  const Matrix matrix = matrix_of(p, tile);
  for (int i = threadIdx.x; i < Decode::kTable; i += kThreads) table[i] = matrix.codebook[i];

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_row = (static_cast<int>(blockIdx.y) * (kWarps / split) + warp / split) * kRows;
  const int units = p.k / Decode::kColumns;
  float acc[kRows][kTile] = {};
  for (int first = 0; first < p.k; first += Stage::kColumns) {
    const int columns = min(Stage::kColumns, p.k - first), unit0 = first / Decode::kColumns;
    __syncthreads();  // nobody reads the previous chunk any more
    Stage::fill(p, tile, first, columns, staged_x);
    __syncthreads();
    // Steps of this warp in this chunk: those whose number is warp modulo split.
    const int step0 = unit0 / kWarp, skip = (warp % split - step0 % split + split) % split;
    const int end = min(units, unit0 + Stage::kPlane);
    for (int unit = unit0 + skip * kWarp + lane; unit < end; unit += split * kWarp) {
      typename Decode::Loaded loaded[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        loaded[r] = Decode::load(matrix, min(first_row + r, p.n - 1), unit);
      multiply_unit<Decode, X, kTile>(loaded, staged_x, unit - unit0, table, acc);
    }
  }
  const float sum = reduce<kTile>(acc, split, sums);
  const int row = first_row + lane / kTile, pair = lane % kTile;
  if (warp % split == 0 && lane < kRows * kTile && row < p.n && pair < tile.count)
    store_out(p, tile, pair, row, sum * matrix.scale2);
}

// How many warps share a row: fixed by the shape, never by the number of tokens.
template <class Decode>
int split_of(const Product& p) {
  const int64_t steps = (p.k / Decode::kColumns + kWarp - 1) / kWarp;
  const int64_t blocks = (p.rows_per_token + kWarps * kRows - 1) / (kWarps * kRows);
  int split = 1;
  while (split < kWarps && 2 * split <= steps && blocks * split < kWantedBlocks) split *= 2;
  return split;
}

template <class Decode, class X, int kTile>
void launch_product(Device& device, const Product& p) {
  const int split = split_of<Decode>(p);
  const int rows = kWarps / split * kRows;
  launch(device, "product", product_kernel<Decode, X, kTile>,
         {.grid = tile_slots(p),
          .block = kThreads,
          .grid_y = (p.n + rows - 1) / rows,
          .grid_z = p.parts,
          .shared = Staged<Decode, X, kTile>::kBytes},
         p, split);
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
