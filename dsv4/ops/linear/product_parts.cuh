// What the product kernels share: which tile a block has, where its matrix, x and out are.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/linear/product_cuda.h"
#include "dsv4/ops/linear/weight_decode.cuh"

namespace dsv4::product {

struct Tile {
  int stack, part;
  int64_t first;  // pair
  int count;      // 0: nothing to do
};

// Of a grid with tiles along x and parts along z.
__device__ inline Tile this_tile(const Product& p) {
  const int part = static_cast<int>(blockIdx.z);
  if (p.tiles == nullptr) {
    const int64_t first = static_cast<int64_t>(blockIdx.x) * p.tile_pairs;
    const int64_t left = p.num_pairs - first;
    return {p.stack_is_part ? part : 0, part, first,
            static_cast<int>(left < p.tile_pairs ? left : p.tile_pairs)};
  }
  if (static_cast<int>(blockIdx.x) >= *p.num_tiles) return {};
  const ProductTile tile = p.tiles[blockIdx.x];
  return {tile.stack, part, tile.first, tile.count};
}

__device__ inline Matrix matrix_of(const Product& p, const Tile& tile) {
  const WeightStack& w = p.weight[p.stack_is_part ? 0 : tile.part];
  return {.data = w.data + tile.stack * w.stack_bytes,
          .scale = w.scale + tile.stack * w.scale_stack_bytes,
          .row_bytes = w.row_bytes,
          .scale_row_bytes = w.scale_row_bytes,
          .scale_is_f32 = w.scale_is_f32,
          .scale2 = w.scale2s == nullptr ? w.scale2 : w.scale2s[tile.stack],
          .codebook = w.codebook + tile.stack * w.codebook_stack};
}

__device__ inline int64_t x_row(const Product& p, int64_t pair) {
  return p.gather == nullptr ? pair : p.gather[pair];
}

// Element `column` of a part of row `row`.
__device__ inline int64_t x_offset(const Product& p, int64_t row, int part, int64_t column) {
  return row * p.x_stride + part * p.x_part + column;
}
__device__ inline float x_scale_at(const Product& p, int64_t row, int part, int64_t column) {
  return ue8m0_to_f32(p.x_scale[row * p.x_scale_stride + part * p.x_scale_part + column / 128]);
}

__device__ inline float load_x(const Product& p, int64_t row, int part, int64_t column) {
  const int64_t i = x_offset(p, row, part, column);
  if (p.x_dtype == DType::kF32) return load_as<float>(p.x + i * 4);
  if (p.x_dtype == DType::kBF16) return bf16_to_f32(load_as<uint16_t>(p.x + i * 2));
  return e4m3_to_f32(load_as<uint8_t>(p.x + i)) * x_scale_at(p, row, part, column);
}

// 8 neighbours from a multiple of 8 on; 16-byte (E4M3: 8-byte) loads where the address allows it.
__device__ inline void load_x8(const Product& p, int64_t row, int part, int column, float (&v)[8]) {
  const int64_t i = x_offset(p, row, part, column);
  const std::byte* at = p.x + i * (p.x_dtype == DType::kF32    ? 4
                                   : p.x_dtype == DType::kBF16 ? 2
                                                               : 1);
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (p.x_dtype == DType::kBF16 && address % 16 == 0) {
    const auto words = load_as<uint4>(at);
    for (int j = 0; j < 4; ++j) widen_bf16x2(word_of(words, j), v + 2 * j);
  } else if (p.x_dtype == DType::kF32 && address % 16 == 0) {
    *reinterpret_cast<float4*>(v) = load_as<float4>(at);
    *reinterpret_cast<float4*>(v + 4) = load_as<float4>(at + 16);
  } else if (p.x_dtype == DType::kE4M3 && address % 8 == 0) {
    const auto words = load_as<uint2>(at);
    widen_e4m3x2(words.x & 0xffffu, v), widen_e4m3x2(words.x >> 16, v + 2);
    widen_e4m3x2(words.y & 0xffffu, v + 4), widen_e4m3x2(words.y >> 16, v + 6);
    const float scale = x_scale_at(p, row, part, column);
    for (float& value : v) value *= scale;
  } else {
    for (int j = 0; j < 8; ++j) v[j] = load_x(p, row, part, column + j);
  }
}

__device__ inline void store_out(const Product& p, const Tile& tile, int pair, int row,
                                 float value) {
  const int64_t i =
      (tile.first + pair) * p.out_stride + static_cast<int64_t>(tile.part) * p.n + row;
  if (p.out_is_bf16) {
    reinterpret_cast<bf16*>(p.out)[i] = __float2bfloat16_rn(value);
  } else {
    reinterpret_cast<float*>(p.out)[i] = value;
  }
}

}  // namespace dsv4::product
