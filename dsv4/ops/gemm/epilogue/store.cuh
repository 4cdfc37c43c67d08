// The epilogue of a product that is stored as it is, f32 or bf16.

#pragma once

#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

// Rounds and stores the sums of a tile.
template <class P>
struct StoreTile {
  static constexpr int kTiles = 1;
  const P& params;

  template <class Consumer>
  __device__ void operator()(const Consumer& consumer, const Tile& tile, int first_token,
                             int tokens) const {
    const Matrix& matrix = params.matrix[tile.matrix];
    for (int i = static_cast<int>(threadIdx.x); i < consumer.own_token_pairs() * kTileRows;
         i += kConsumers) {
      const int own = i / kTileRows, row = i % kTileRows;
      const float2 sum = consumer.sum(0, own, row);
      const int token = 2 * consumer.token_pair_of(own);
      if (row >= tile.count) continue;
      store(matrix, tile.row + row, first_token + token, sum.x);
      if (token + 1 < tokens) store(matrix, tile.row + row, first_token + token + 1, sum.y);
    }
  }

 private:
  __device__ static void store(const Matrix& matrix, int row, int64_t token, float value) {
    const int64_t i = token * matrix.out_stride + row;
    if (matrix.out_is_bf16) {
      static_cast<bf16*>(matrix.out)[i] = from_float<bf16>(value);
    } else {
      static_cast<float*>(matrix.out)[i] = value;
    }
  }
};

}  // namespace dsv4::gemm
