// The two products of a block of sparse_mla_mma.cu, and the shared memory that they read.
//
// Fragments as in ptx/mma.cuh: lane 4 g + j holds rows g and g + 8 of 16 heads, columns 2j, 2j + 1.

#pragma once

#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/ops/sparse_mla/key_tile.cuh"

namespace dsv4::mla {

constexpr int kWidth = kTileWidth, kTile = kTileKeys, kSteps = kWidth / 16;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kSegment = 1280;             // list positions of a block
constexpr int kColumns = kWidth / kWarps;  // of the output that a warp owns
constexpr int kWeightStride = kTile + 8;   // as kTileStride
static_assert(kSegment % kThreads == 0 && kTile * 4 == kThreads && kTile == 8 * kWarps);

template <int kHeads>
struct Shared {
  bf16 q[kHeads][kTileStride];
  KeyTile tile;
  bf16 weights[kHeads][kWeightStride];
  int32_t rows[kSegment];
  float maxima[kWarps][kHeads];  // of a tile, by part of its keys
  float sums[kWarps][kHeads];    // of weights, by keys mod 64 / 8
  int counts[kWarps];
};

// A block of kMTiles x 16 heads. In Z a warp has 16 heads and kNTiles groups of 8 keys.
template <int kMTiles>
struct Split {
  static constexpr int kHeads = 16 * kMTiles;
  static constexpr int kParts = kWarps / kMTiles;  // of the keys
  static constexpr int kNTiles = kTile / 8 / kParts;
  __device__ static int m_tile() { return static_cast<int>(threadIdx.x) / kWarp / kParts; }
  __device__ static int part() { return static_cast<int>(threadIdx.x) / kWarp % kParts; }
};

// A of Z. With 16 heads there is room to keep it in registers: shared memory is what limits the
// product, and all warps would read the same.
template <int kMTiles>
struct Queries {
  static constexpr bool kHeld = kMTiles == 1;
  uint32_t held[kHeld ? kSteps : 1][4];
  const bf16* rows;

  __device__ explicit Queries(const Shared<16 * kMTiles>& shared) {
    const int lane = threadIdx.x % kWarp;
    rows = shared.q[16 * Split<kMTiles>::m_tile() + lane % 16] + lane / 16 * 8;
    if constexpr (kHeld) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) ptx::ldmatrix_x4(held[step], rows + 16 * step);
    }
  }

  __device__ void fragment(int step, uint32_t (&a)[4]) const {
    if constexpr (kHeld) {
      for (int i = 0; i < 4; ++i) a[i] = held[step][i];
    } else {
      ptx::ldmatrix_x4(a, rows + 16 * step);
    }
  }
};

// Even and odd steps add up apart: half the latency of one chain.
template <int kMTiles>
__device__ void multiply_keys(const Shared<16 * kMTiles>& shared, const Queries<kMTiles>& queries,
                              float (&z)[Split<kMTiles>::kNTiles][4]) {
  using S = Split<kMTiles>;
  constexpr int kUnroll = Queries<kMTiles>::kHeld ? kSteps / 2 : 4;
  const int lane = threadIdx.x % kWarp;
  const bf16* k = shared.tile.keys[8 * S::kNTiles * S::part() + lane % 8] + lane / 8 * 8;
  float odd[S::kNTiles][4] = {};
#pragma unroll kUnroll
  for (int step = 0; step < kSteps; step += 2) {
    uint32_t a[2][4];
    queries.fragment(step, a[0]);
    queries.fragment(step + 1, a[1]);
#pragma unroll
    for (int n = 0; n < S::kNTiles; ++n) {
      uint32_t b[4];  // 8 keys, 32 dims
      ptx::ldmatrix_x4(b, k + 8 * n * kTileStride + 16 * step);
      ptx::mma_m16n8k16_bf16(z[n], a[0], b[0], b[1]);
      ptx::mma_m16n8k16_bf16(odd[n], a[1], b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < S::kNTiles; ++n) {
    for (int i = 0; i < 4; ++i) z[n][i] += odd[n][i];
  }
}

constexpr int kOutTiles = kColumns / 8;

template <int kMTiles>
__device__ void multiply_values(const Shared<16 * kMTiles>& shared,
                                float (&out)[kMTiles][kOutTiles][4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bf16* p = shared.weights[lane % 16] + lane / 16 * 8;
  const bf16* k = shared.tile.keys[lane % 16] + warp * kColumns + lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    uint32_t a[kMTiles][4];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      ptx::ldmatrix_x4(a[m], p + 16 * m * kWeightStride + 16 * step);
    }
#pragma unroll
    for (int n = 0; n < kOutTiles; n += 2) {
      uint32_t b[4];  // 16 keys, 16 columns
      ptx::ldmatrix_x4_trans(b, k + 16 * step * kTileStride + 8 * n);
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
        ptx::mma_m16n8k16_bf16(out[m][n], a[m], b[0], b[1]);
        ptx::mma_m16n8k16_bf16(out[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace dsv4::mla
