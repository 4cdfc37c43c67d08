// The GEMV kernels of problem.h: weights decoded in registers, f32 FMA, up to 8 rows of x.
//
// A CTA keeps the tile's rows of x in shared memory and computes rows of the weight in passes. In
// each pass a warp computes kRows rows, and each lane takes every 32nd unit of columns: a step. The
// units of the next step are loaded while those of this step are multiplied.
//
// When there are too few rows of the weight to fill the device, `split` warps share kRows rows:
// each computes every split-th step, and their sums are added at the end.
//
// The order of additions of one output depends on the format, k and split alone: units of a lane in
// ascending order (the columns of one scale first), lanes as a butterfly, splits in ascending
// order. It does not depend on the tile.

#pragma once

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/cuda/kernels.h"
#include "dsv4/ops/gemm/cuda/tile.cuh"

namespace dsv4::gemm::cuda {

// Rows of the weight per warp and pass: as many as fit into registers.
template <class Decode, int kTile>
inline constexpr int kRows = kTile >= 4 && Decode::kScaled > 0 ? 2 : 4;
inline constexpr int kMaxSplit = 8;
// With large tiles, one CTA fills the registers and the shared memory of an SM.
template <int kTile>
inline constexpr int kWarps = kTile == 8 ? 16 : 8;
template <int kTile>
inline constexpr int kCtasPerSm = kTile == 8 ? 1 : 2;

// 8 values of x in shared memory: one or two 16-byte quads.
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

// x of a tile: [unit][m][piece] quads. The distance between units is odd, so the lanes of a warp,
// which read neighboring units, are free of bank conflicts.
template <class Decode, class X, int kTile>
struct Staged {
  static constexpr int kPieces = Decode::kColumns / 8;
  static constexpr int kUnit = (kTile * kPieces * Piece<X>::kQuads) | 1;  // quads

  static constexpr int64_t bytes(int64_t k) { return k / Decode::kColumns * kUnit * 16; }
  static __device__ int at(int unit, int m, int piece) {
    return unit * kUnit + (m * kPieces + piece) * Piece<X>::kQuads;
  }
  // Rows past the end of a short tile are zero.
  static __device__ void fill(const Problem& p, const Tile& tile, uint4* x) {
    const int pieces = p.k / 8;
    for (int m = 0; m < kTile; ++m) {
      const bool exists = m < tile.rows;
      const int64_t row = exists ? x_row(p, tile.first_row + m) : 0;
      for (int i = threadIdx.x; i < pieces; i += kWarps<kTile> * kWarp) {
        float v[8] = {};
        if (exists) load_x8(p, row, tile.projection, i * 8, v);
        Piece<X>::store(x + at(i / kPieces, m, i % kPieces), v);
      }
    }
  }
};

// acc[r][t] += one unit of row r of the weight times row t of x; columns that share a scale are
// summed first.
template <class Decode, class X, int kTile, int kRows>
__device__ inline void multiply_unit(const Matrix& matrix,
                                     const typename Decode::Loaded (&loaded)[kRows], const uint4* x,
                                     const float* table, float (&acc)[kRows][kTile]) {
  using Stage = Staged<Decode, X, kTile>;
  typename Decode::Codes codes[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) codes[r] = Decode::codes(loaded[r], matrix);
  float scaled_sum[kRows][kTile];
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
          float sum = piece % Decode::kScaled == 0 ? 0.f : scaled_sum[r][t];
#pragma unroll
          for (int j = 0; j < 8; ++j) sum = fmaf(v[j], w[r][j], sum);
          scaled_sum[r][t] = sum;
          if (piece % Decode::kScaled == Decode::kScaled - 1)
            acc[r][t] = fmaf(sum, Decode::scale(codes[r], piece), acc[r][t]);
        }
      }
    }
  }
}

// Adds over lanes and then over splits; lane r * kTile + t of the first split gets row r of the
// weight times row t of x. shared: one float per thread, free again after the next two barriers
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

// grid: tiles, then CTAs that share the passes, then projections
template <class Decode, class X, int kTile>
__global__ void __launch_bounds__(kWarps<kTile>* kWarp, kCtasPerSm<kTile>)
    gemv_kernel(const __grid_constant__ Problem p, int split, int passes) {
  ptx::pdl_start();
  using Stage = Staged<Decode, X, kTile>;
  constexpr int kThreads = kWarps<kTile> * kWarp, kRows = cuda::kRows<Decode, kTile>;
  auto* const staged_x = reinterpret_cast<uint4*>(ptx::dynamic_smem());
  __shared__ float table[Decode::kTable + 1], sums[2][kThreads];
  const Tile tile = this_tile(p);
  if (tile.rows == 0) return;
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
  for (int buffer = 0; pass < passes; pass += gridDim.y, buffer ^= 1) {
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
    const float sum = reduce<kTile, kRows>(acc, split, sums[buffer]);
    const int row = first_row(pass) + lane / kTile, m = lane % kTile;
    if (warp % split == 0 && lane < kRows * kTile && row < p.n && m < tile.rows)
      store_out(p, tile, m, row, sum * matrix.scale2);
  }
}

// How many warps share their rows: set by the shape of the weights, never by the number of tokens,
// so that it gives two CTAs of 8 warps to each of some 100 SMs.
template <class Decode>
int split_of(const Problem& p) {
  constexpr int kWantedCtas = 200;
  const int steps = (p.k / Decode::kColumns + kWarp - 1) / kWarp;
  constexpr int kCtaRows = 32;
  const int ctas = (p.weight_rows_per_token + kCtaRows - 1) / kCtaRows;
  int split = 1;
  while (split < kMaxSplit && 2 * split <= steps && ctas * split < kWantedCtas) split *= 2;
  return split;
}

template <class Decode, class X, int kTile>
void launch_gemv(Device& device, const Problem& p) {
  const int split = split_of<Decode>(p);
  const int rows = kWarps<kTile> / split * kRows<Decode, kTile>;
  const int64_t passes = (p.n + rows - 1) / rows, columns = tile_slots(p) * p.projections;
  if (columns == 0) return;
  // As many CTAs as are resident at a time, with equal numbers of passes. When that cannot come out
  // even, because there are many tiles or some may be absent, four times as many.
  const int64_t resident = device.info().num_sms * kCtasPerSm<kTile>;
  const bool even = 8 * columns <= resident && (p.tiles == nullptr || p.tile_m == 1);
  const int64_t ctas = even ? resident : 4 * resident;
  const int64_t cta_passes = (passes * columns + ctas - 1) / ctas;
  launch(device, "quant_gemv", gemv_kernel<Decode, X, kTile>,
         {.grid = tile_slots(p),
          .block = kWarps<kTile> * kWarp,
          .grid_y = (passes + cta_passes - 1) / cta_passes,
          .grid_z = p.projections,
          .shared = Staged<Decode, X, kTile>::bytes(p.k)},
         p, split, passes);
}

// f32 activations come from kExact, where speed matters less: two tile sizes. f16 shares them.
template <class Decode>
void gemv(Device& device, const Problem& p) {
  if (is_staged_as_f32(p)) {
    return p.tile_m == 1 ? launch_gemv<Decode, float, 1>(device, p)
                         : launch_gemv<Decode, float, 4>(device, p);
  }
  switch (p.tile_m) {
    case 1:
      return launch_gemv<Decode, bf16, 1>(device, p);
    case 2:
      return launch_gemv<Decode, bf16, 2>(device, p);
    case 4:
      return launch_gemv<Decode, bf16, 4>(device, p);
    default:
      return launch_gemv<Decode, bf16, 8>(device, p);
  }
}

}  // namespace dsv4::gemm::cuda
