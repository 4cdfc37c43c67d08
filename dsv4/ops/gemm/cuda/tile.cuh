// What the kernels of a problem share: the tile of a CTA, and where its matrix, x and out are.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/gemm/cuda/problem.h"
#include "dsv4/ops/gemm/cuda/store_at.cuh"
#include "dsv4/ops/gemm/weights/decode.cuh"

namespace dsv4::gemm::cuda {

struct Tile {
  int matrix, projection;
  int64_t first_row;  // of out
  int rows;           // 0: nothing to do
};

// The grid has tiles along x and projections along z.
__device__ inline Tile this_tile(const Problem& p) {
  const int projection = static_cast<int>(blockIdx.z);
  if (p.tiles == nullptr) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * p.tile_m;
    const int64_t left = p.m - first;
    return {p.projection_is_matrix ? projection : 0, projection, first,
            static_cast<int>(left < p.tile_m ? left : p.tile_m)};
  }
  if (static_cast<int>(blockIdx.x) >= *p.num_tiles) return {};
  const RowTile tile = p.tiles[blockIdx.x];
  return {tile.matrix, projection, tile.first_row, tile.rows};
}

__device__ inline Matrix matrix_of(const Problem& p, const Tile& tile) {
  const StridedWeight& w = p.weight[p.projection_is_matrix ? 0 : tile.projection];
  if (w.places != nullptr) {
    const MatrixPlace place = w.places[tile.matrix];
    return {.data = place.data,
            .scale = place.scale,
            .row_bytes = place.row_bytes,
            .scale_row_bytes = place.scale_row_bytes,
            .scale_is_f32 = w.scale_is_f32,
            .scale2 = place.scale2,
            .codebook = place.codebook};
  }
  return {.data = w.data + tile.matrix * w.matrix_bytes,
          .scale = w.scale + tile.matrix * w.scale_matrix_bytes,
          .row_bytes = w.row_bytes,
          .scale_row_bytes = w.scale_row_bytes,
          .scale_is_f32 = w.scale_is_f32,
          .scale2 = w.scale2s == nullptr ? w.scale2 : w.scale2s[tile.matrix],
          .codebook = w.codebook + tile.matrix * w.codebook_stride};
}

// The row of x for row m of out.
__device__ inline int64_t x_row(const Problem& p, int64_t m) {
  return p.gather == nullptr ? m : p.gather[m];
}

// Element `column` of row `row` of x, counted from the projection's first column.
__device__ inline int64_t x_offset(const Problem& p, int64_t row, int projection, int64_t column) {
  return row * p.x_stride + projection * p.x_projection_stride + column;
}
__device__ inline float x_scale_at(const Problem& p, int64_t row, int projection, int64_t column) {
  return ue8m0_to_f32(
      p.x_scale[row * p.x_scale_stride + projection * p.x_scale_projection_stride + column / 128]);
}

__device__ inline float load_x(const Problem& p, int64_t row, int projection, int64_t column) {
  const int64_t i = x_offset(p, row, projection, column);
  if (p.x_dtype == DType::kF32) return load_as<float>(p.x + i * 4);
  if (p.x_dtype == DType::kBF16) return bf16_to_f32(load_as<uint16_t>(p.x + i * 2));
  if (p.x_dtype == DType::kF16) return f16_to_f32(load_as<uint16_t>(p.x + i * 2));
  return e4m3_to_f32(load_as<uint8_t>(p.x + i)) * x_scale_at(p, row, projection, column);
}

// 8 neighboring columns, the first a multiple of 8; with 16-byte (E4M3: 8-byte) loads where the
// address allows them.
__device__ inline void load_x8(const Problem& p, int64_t row, int projection, int column,
                               float (&v)[8]) {
  const int64_t i = x_offset(p, row, projection, column);
  const bool is_half = p.x_dtype == DType::kBF16 || p.x_dtype == DType::kF16;
  const std::byte* at = p.x + i * (p.x_dtype == DType::kF32 ? 4 : is_half ? 2 : 1);
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (p.x_dtype == DType::kBF16 && address % 16 == 0) {
    const auto words = load_as<uint4>(at);
    for (int j = 0; j < 4; ++j) widen_bf16x2(word_of(words, j), v + 2 * j);
  } else if (p.x_dtype == DType::kF16 && address % 16 == 0) {
    const auto words = load_as<uint4>(at);
    for (int j = 0; j < 4; ++j) widen_f16x2(word_of(words, j), v + 2 * j);
  } else if (p.x_dtype == DType::kF32 && address % 16 == 0) {
    *reinterpret_cast<float4*>(v) = load_as<float4>(at);
    *reinterpret_cast<float4*>(v + 4) = load_as<float4>(at + 16);
  } else if (p.x_dtype == DType::kE4M3 && address % 8 == 0) {
    const auto words = load_as<uint2>(at);
    widen_e4m3x2(words.x & 0xffffu, v), widen_e4m3x2(words.x >> 16, v + 2);
    widen_e4m3x2(words.y & 0xffffu, v + 4), widen_e4m3x2(words.y >> 16, v + 6);
    const float scale = x_scale_at(p, row, projection, column);
    for (float& value : v) value *= scale;
  } else {
    for (int j = 0; j < 8; ++j) v[j] = load_x(p, row, projection, column + j);
  }
}

// out[tile.first_row + m, column n of the projection]
__device__ inline void store_out(const Problem& p, const Tile& tile, int m, int n, float value) {
  const int64_t i =
      (tile.first_row + m) * p.out_stride + static_cast<int64_t>(tile.projection) * p.n + n;
  store_at(p.out, p.out_dtype, i, value);
}

}  // namespace dsv4::gemm::cuda
