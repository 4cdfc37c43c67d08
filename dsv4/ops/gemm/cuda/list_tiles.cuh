// The kernel of grouped.h that lists the tiles of a list of matrices and stores where they are.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/cuda/grouped.h"
#include "dsv4/ops/gemm/cuda/place_tiles.cuh"

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
  const int i = static_cast<int>(threadIdx.x);
  int first = 0, count = 0;
  if (i < list.count) {
    first = offsets[list.index[i]];
    count = offsets[list.index[i] + 1] - first;
    to.places[i] = list.place[i];
  }
  place_tiles(first, count, tile_m, to.tiles, to.num_tiles);
}

}  // namespace dsv4::gemm::cuda
