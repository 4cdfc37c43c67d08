// u = o wo_a^T with Q8 of u in the epilogue: a cluster has whole groups of 128 rows of wo_a, which
// are groups of 128 columns of u, and the owner of a token all rows of it.

#pragma once

#include "dsv4/device/quantize.cuh"
#include "dsv4/ops/gemm/sm90/small_m/kernel.cuh"

namespace dsv4::attention_out_kernel::sm90_few {

struct Params : gemm::Params<1> {
  uint8_t* codes = nullptr;   // [t, groups * r] e4m3
  uint8_t* scales = nullptr;  // [t, groups * r / 128] E8M0
  int rows = 0;               // groups * r
};

// After two tiles. A warp quantizes the two tokens of a pair; a lane has four rows.
struct StoreQ8 {
  static constexpr int kTiles = 2;
  static constexpr int kLaneRows = gemm::kScaleColumns / kWarp;
  const Params& params;

  template <class Consumer>
  __device__ void operator()(const Consumer& consumer, const gemm::Tile& tile, int first_token,
                             int tokens) const {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int back = lane < kWarp / 2 ? 1 : 0;  // the tile of this lane's rows
    const int row = lane * kLaneRows % gemm::kTileRows;
    const int column = tile.row - gemm::kTileRows;  // of u, first of the group
    for (int own = warp; own < consumer.own_token_pairs(); own += gemm::kConsumers / kWarp) {
      float even[kLaneRows], odd[kLaneRows];
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        const float2 sum = consumer.sum(back, own, row + i);
        even[i] = to_float(from_float<bf16>(sum.x));
        odd[i] = to_float(from_float<bf16>(sum.y));
      }
      const int token = 2 * consumer.token_pair_of(own);
      store(even, first_token + token, column, lane);
      if (token + 1 < tokens) store(odd, first_token + token + 1, column, lane);
    }
  }

 private:
  // All lanes of a warp.
  __device__ void store(const float (&u)[kLaneRows], int64_t token, int column, int lane) const {
    const int64_t at = token * params.rows + column;
    warp_quantize_q8(u, params.codes + at + lane * kLaneRows,
                     params.scales + at / gemm::kScaleColumns);
  }
};

}  // namespace dsv4::attention_out_kernel::sm90_few
