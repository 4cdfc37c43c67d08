// Parameters and shared memory of the kernel of kbit_stream.h.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream_plan.h"
#include "dsv4/tensor/dtype.h"

namespace dsv4::gemm::kbit_stream {

struct Params {
  const unsigned char* codes = nullptr;  // [n, k / 32 * K] words
  const uint8_t* scale = nullptr;        // [n, k / 32] E4M4
  const float* codebook = nullptr;       // [2^K]
  const uint16_t* x = nullptr;           // [tokens, k] bf16 or f16, rows 16-byte aligned
  void* out = nullptr;                   // [tokens, n]
  int64_t row_bytes = 0;                 // from a row of codes to the next
  int64_t scale_stride = 0, x_stride = 0, out_stride = 0;  // elements
  DType out_dtype = DType::kBF16;
  bool whole = false;  // all tiles and units are, and rows of codes are 16-byte aligned
  int n = 0, k = 0, tokens = 0;
  float scale2 = 1;
  Plan plan;
};

// The dynamic shared memory of a CTA.
template <int K, int kTokens>
struct Memory {
  static constexpr Layout kAt{K, kTokens};
  unsigned char* base = ptx::dynamic_smem();

  __device__ unsigned char* table() const { return base; }
  // [slots][16 rows][4 blocks][K] words of a warp
  __device__ unsigned char* ring(int warp) const {
    return base + kAt.ring + warp * slots(K) * slot_bytes(K);
  }
  // [sums_pitch] of [kWarps][kTokens]: of the tiles of a round
  __device__ float* sums(int warp, int token) const {
    return reinterpret_cast<float*>(base + kAt.sums) + (warp * kTokens + token) * kAt.sums_pitch;
  }
  __device__ uint16_t* book() const { return reinterpret_cast<uint16_t*>(base + kAt.book); }
};

// What a warp has: the tiles of its row group, the units of its k group.
struct Share {
  int warp, lane;
  int row_group, k_group;
  int first_unit, end_unit;
  int first_tile, end_tile;  // of the CTA

  __device__ Share(const Plan& plan, int cta)
      : warp(static_cast<int>(threadIdx.x) / kWarp),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        row_group(warp / plan.k_groups),
        k_group(warp % plan.k_groups),
        first_unit(plan.first_unit(k_group)),
        end_unit(plan.first_unit(k_group + 1)),
        first_tile(plan.first_tile(cta)),
        end_tile(plan.first_tile(cta + 1)) {}

  // The first tile of a row group in a round, and how many it has.
  __device__ int tile(const Plan& plan, int round, int of_row_group) const {
    return first_tile + (round * plan.row_groups() + of_row_group) * plan.group_tiles;
  }
  __device__ int tiles(const Plan& plan, int round) const {
    return max(0, min(plan.group_tiles, end_tile - tile(plan, round, row_group)));
  }
};

}  // namespace dsv4::gemm::kbit_stream
