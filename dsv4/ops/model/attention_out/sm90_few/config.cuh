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
    float largest = 0;
#pragma unroll
    for (const float value : u) largest = fmaxf(largest, fabsf(value));
    const uint8_t scale = q8_scale(warp_max(largest));
    const float inverse = inverse_scale(scale);
    Pack<__nv_fp8x2_storage_t, kLaneRows / 2> codes;
#pragma unroll
    for (int i = 0; i < kLaneRows / 2; ++i)
      codes.value[i] = __nv_cvt_float2_to_fp8x2({u[2 * i] * inverse, u[2 * i + 1] * inverse},
                                                __NV_SATFINITE, __NV_E4M3);
    uint8_t* to = params.codes + token * params.rows + column + lane * kLaneRows;
    *reinterpret_cast<decltype(codes)*>(to) = codes;
    if (lane == 0) params.scales[(token * params.rows + column) / gemm::kScaleColumns] = scale;
  }
};

}  // namespace dsv4::attention_out_kernel::sm90_few
