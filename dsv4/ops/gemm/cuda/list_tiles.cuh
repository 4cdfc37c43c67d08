// The kernel of grouped.h that lists the tiles of a list of matrices and stores where they are.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/select.cuh"
#include "dsv4/ops/gemm/cuda/grouped.h"

namespace dsv4::gemm::cuda {

// A kernel argument: 14 KB.
struct MatrixList {
  MatrixPlace place[kListed];
  int32_t index[kListed];  // of the matrix in the offsets, ascending
  int32_t count;
};

struct TileList {
  MatrixPlace* places;  // [count]
  RowTile* tiles;       // RowTile::matrix counts in the list
  int32_t* num_tiles;
};

// One CTA of kSelectThreads. Tiles are in order of matrix.
__global__ void __launch_bounds__(kSelectThreads)
    list_tiles_kernel(const __grid_constant__ MatrixList list, const int32_t* offsets, int tile_m,
                      TileList to) {
  ptx::pdl_start();
  __shared__ int32_t warp_tiles[kSelectWarps];
  const int i = static_cast<int>(threadIdx.x);
  int first = 0, count = 0;
  if (i < list.count) {
    first = offsets[list.index[i]];
    count = offsets[list.index[i] + 1] - first;
    to.places[i] = list.place[i];
  }
  const int tiles = (count + tile_m - 1) / tile_m;
  const int through = warp_sum_through(tiles);
  if (i % kWarp == kWarp - 1) warp_tiles[i / kWarp] = through;
  __syncthreads();
  const WarpSums sums = sum_warps(warp_tiles);
  const int at = sums.before + through - tiles;
  for (int t = 0; t < tiles; ++t)
    to.tiles[at + t] = {i, first + t * tile_m, min(tile_m, count - t * tile_m)};
  if (i == 0) *to.num_tiles = sums.all;
}

}  // namespace dsv4::gemm::cuda
