// Tiles of the rows of several matrices, listed by one CTA: a part of kernels that list them.

#pragma once

#include "dsv4/device/select.cuh"
#include "dsv4/ops/gemm/cuda/problem.h"

namespace dsv4::gemm::cuda {

// By kSelectThreads threads, thread i for matrix i: its `count` rows from first_row on become tiles
// of up to tile_m rows. Tiles are in order of matrix.
__device__ inline void place_tiles(int first_row, int count, int tile_m, RowTile* tiles,
                                   int32_t* num_tiles) {
  __shared__ int32_t warp_tiles[kSelectWarps];
  const int i = static_cast<int>(threadIdx.x);
  const int own = (count + tile_m - 1) / tile_m;
  const int through = warp_sum_through(own);
  if (i % kWarp == kWarp - 1) warp_tiles[i / kWarp] = through;
  __syncthreads();
  const WarpSums sums = sum_warps(warp_tiles);
  const int at = sums.before + through - own;
  for (int t = 0; t < own; ++t)
    tiles[at + t] = {i, first_row + t * tile_m, min(tile_m, count - t * tile_m)};
  if (i == 0) *num_tiles = sums.all;
}

}  // namespace dsv4::gemm::cuda
