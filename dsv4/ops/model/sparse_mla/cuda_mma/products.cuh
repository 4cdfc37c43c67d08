// The two matrix products of a CTA, and the shared memory that they read.
//
// Fragments as in ptx/mma.cuh: lane 4 g + j holds rows g and g + 8 of 16 heads, columns 2j, 2j + 1.

#pragma once

#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/ops/model/sparse_mla/cuda_mma/kv_tile.cuh"

namespace dsv4::sparse_mla_kernel::cuda_mma {

constexpr int kWidth = kTileWidth, kTile = kTileKeys, kSteps = kWidth / 16;
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kSplitKeys = 1280;           // list positions of a split
constexpr int kColumns = kWidth / kWarps;  // output dims of a warp
constexpr int kPStride = kTile + 8;        // as kTileStride
static_assert(kSplitKeys % kThreads == 0 && kTile * 4 == kThreads && kTile == 8 * kWarps);

template <int kHeads>
struct Shared {
  bf16 q[kHeads][kTileStride];
  KvTile tile;
  bf16 p[kHeads][kPStride];
  int32_t entries[kSplitKeys];
  float tile_max[kWarps][kHeads];  // of a tile, by key group
  float sums[kWarps][kHeads];      // of P, by keys mod 64 / 8
  int counts[kWarps];
};

// A CTA of kMTiles x 16 heads. Of S a warp has 16 heads and kNTiles groups of 8 keys.
template <int kMTiles>
struct WarpTiling {
  static constexpr int kHeads = 16 * kMTiles;
  static constexpr int kKeyGroups = kWarps / kMTiles;  // of warps with the same heads
  static constexpr int kNTiles = kTile / 8 / kKeyGroups;
  __device__ static int m_tile() { return static_cast<int>(threadIdx.x) / kWarp / kKeyGroups; }
  __device__ static int key_group() { return static_cast<int>(threadIdx.x) / kWarp % kKeyGroups; }
};

// A of S = Q K^T. With 16 heads it fits in registers: shared memory bandwidth limits the product,
// and all warps would read the same.
template <int kMTiles>
struct Queries {
  static constexpr bool kHeld = kMTiles == 1;
  uint32_t held[kHeld ? kSteps : 1][4];
  const bf16* rows;

  __device__ explicit Queries(const Shared<16 * kMTiles>& shared) {
    const int lane = threadIdx.x % kWarp;
    rows = shared.q[16 * WarpTiling<kMTiles>::m_tile() + lane % 16] + lane / 16 * 8;
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

// Even and odd steps use separate accumulators: half the latency of one chain.
template <int kMTiles>
__device__ void multiply_qk(const Shared<16 * kMTiles>& shared, const Queries<kMTiles>& queries,
                            float (&s)[WarpTiling<kMTiles>::kNTiles][4]) {
  using W = WarpTiling<kMTiles>;
  constexpr int kUnroll = Queries<kMTiles>::kHeld ? kSteps / 2 : 4;
  const int lane = threadIdx.x % kWarp;
  const bf16* k = shared.tile.keys[8 * W::kNTiles * W::key_group() + lane % 8] + lane / 8 * 8;
  float odd[W::kNTiles][4] = {};
#pragma unroll kUnroll
  for (int step = 0; step < kSteps; step += 2) {
    uint32_t a[2][4];
    queries.fragment(step, a[0]);
    queries.fragment(step + 1, a[1]);
#pragma unroll
    for (int n = 0; n < W::kNTiles; ++n) {
      uint32_t b[4];  // 8 keys, 32 dims
      ptx::ldmatrix_x4(b, k + 8 * n * kTileStride + 16 * step);
      ptx::mma_m16n8k16_bf16(s[n], a[0], b[0], b[1]);
      ptx::mma_m16n8k16_bf16(odd[n], a[1], b[2], b[3]);
    }
  }
#pragma unroll
  for (int n = 0; n < W::kNTiles; ++n) {
    for (int i = 0; i < 4; ++i) s[n][i] += odd[n][i];
  }
}

constexpr int kOutTiles = kColumns / 8;

template <int kMTiles>
__device__ void multiply_pv(const Shared<16 * kMTiles>& shared,
                            float (&out)[kMTiles][kOutTiles][4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bf16* p = shared.p[lane % 16] + lane / 16 * 8;
  const bf16* k = shared.tile.keys[lane % 16] + warp * kColumns + lane / 16 * 8;
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    uint32_t a[kMTiles][4];
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
      ptx::ldmatrix_x4(a[m], p + 16 * m * kPStride + 16 * step);
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

}  // namespace dsv4::sparse_mla_kernel::cuda_mma
