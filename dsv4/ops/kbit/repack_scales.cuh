// The kernel of the implementation cuda of repack_scales.h: a thread moves the four scales of a row
// in a tile, which are a word there.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/scale_tiles.h"

namespace dsv4::repack_scales_kernel {

inline constexpr int kThreads = 256;

// A kernel argument.
struct ScaleSides {
  const uint8_t* in;
  uint8_t* out;
  int64_t row_stride;  // bytes from one row of the weight to the next
  ScaleTiles tiles;
  bool to_tiled;
};

// grid: words of all tiles, in the order of the weight's rows
__global__ inline void __launch_bounds__(kThreads) repack_scales_kernel(const ScaleSides sides) {
  ptx::pdl_start();
  const ScaleTiles& tiles = sides.tiles;
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (word >= tiles.bytes() / ScaleTiles::kGroups) return;
  const int64_t row = word / tiles.tile_columns();
  const int64_t group = word % tiles.tile_columns() * ScaleTiles::kGroups;
  const int64_t tiled = tiles.at(row, group), flat = row * sides.row_stride + group;
  for (int i = 0; i < ScaleTiles::kGroups; ++i) {
    const bool exists = row < tiles.n && group + i < tiles.groups;
    if (sides.to_tiled) {
      sides.out[tiled + i] = exists ? sides.in[flat + i] : uint8_t{0};
    } else if (exists) {
      sides.out[flat + i] = sides.in[tiled + i];
    }
  }
}

}  // namespace dsv4::repack_scales_kernel
