// The kernel of kbit_experts.h that lists rows sorted by matrix.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/cuda/kbit_experts.h"
#include "dsv4/ops/gemm/cuda/place_tiles.cuh"

namespace dsv4::gemm::kbit_experts {

static_assert(kSelectThreads == kMaxMatrices, "one thread for each matrix");

// A kernel argument: 4 KB.
struct Scale2s {
  float of[kMaxMatrices];
};

struct RowList {
  cuda::RowTile* tiles;
  int32_t* num_tiles;
  float* scale2s;  // [matrices]
};

// One CTA of kSelectThreads. offsets: [matrices + 1]. Tiles are in order of matrix.
__global__ void __launch_bounds__(kSelectThreads)
    list_rows_kernel(const __grid_constant__ Scale2s scale2s, const int32_t* offsets, int matrices,
                     RowList to) {
  ptx::pdl_start();
  const int i = static_cast<int>(threadIdx.x);
  int first = 0, count = 0;
  if (i < matrices) {
    first = offsets[i], count = offsets[i + 1] - first;
    to.scale2s[i] = scale2s.of[i];
  }
  cuda::place_tiles(first, count, kTileRowsOfX, to.tiles, to.num_tiles);
}

}  // namespace dsv4::gemm::kbit_experts
