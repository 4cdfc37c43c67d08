// What consumers do with the sums of a tile: a fragment has neighboring tokens of a row and outputs
// neighboring rows of a token, so a transposing stmatrix stages sums in bf16.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/quantize.cuh"
#include "dsv4/ops/gemm/sm90/large_m/config.cuh"

namespace dsv4::gemm::large_m {

__device__ inline int group_thread() {
  return ptx::thread_index() % sm90::kWarpgroup;
}
__device__ inline int group_index() {
  return ptx::thread_index() / sm90::kWarpgroup;
}

// The staging of this warpgroup, free before and to be synchronized after.
template <class C>
__device__ void stage_sums(Shared<C>& shared, const float (&sums)[kSums]) {
  const int thread = group_thread(), lane = thread % kWarp;
  const int vector = thread / kWarp * 2 + lane / 8 % 2;
#pragma unroll
  for (int n = 0; n < kTokens / 8; n += 2) {
    uint32_t four[4];  // rows g, g + 8 of eight tokens, then of the next eight
#pragma unroll
    for (int i = 0; i < 4; ++i)
      four[i] = ptx::pack_bf16x2(sums[4 * n + 2 * i], sums[4 * n + 2 * i + 1]);
    const int token = 8 * (n + lane / 16) + lane % 8;
    ptx::stmatrix_x4_trans(
        ptx::smem_address(shared.staging[group_index()] + staged_at(token, vector)), four);
  }
}

// Rounds and stores sums.
struct StoreSums {
  template <class C>
  static __device__ void run(const Params& p, Shared<C>& shared, const Tile& tile,
                             const float (&sums)[kSums]) {
    const Matrix& m = p.matrix[tile.matrix];
    if (!m.out_is_bf16) return store_f32(p, tile, sums);
    const int group = group_index(), thread = group_thread(), barrier = kGroupBarrier + group;
    ptx::barrier_sync(barrier, sm90::kWarpgroup);  // the tile before has been read
    stage_sums(shared, sums);
    ptx::barrier_sync(barrier, sm90::kWarpgroup);
    constexpr int kVectors = kTileRows / 8, kAtOnce = sm90::kWarpgroup / kVectors;
    const int vector = thread % kVectors, first = group * kTileRows + vector * 8;
    const int rows = min(8, tile.rows - first), tokens = min(kTokens, p.tokens - tile.token);
    if (rows <= 0) return;
    auto* const out = static_cast<bf16*>(m.out) + tile.token * m.out_stride + tile.group * m.rows +
                      tile.row + first;
    const int own = thread / kVectors;
    const auto* const from = shared.staging[group];
    if (m.out_in_vectors && rows == 8) {
#pragma unroll 4
      for (int token = own; token < tokens; token += kAtOnce)
        *reinterpret_cast<uint4*>(out + token * m.out_stride) =
            *reinterpret_cast<const uint4*>(from + staged_at(token, vector));
      return;
    }
#pragma unroll 1
    for (int token = own; token < tokens; token += kAtOnce)
#pragma unroll 1
      for (int i = 0; i < rows; ++i)
        out[token * m.out_stride + i] =
            reinterpret_cast<const bf16*>(from + staged_at(token, vector))[i];
  }

 private:
  // Eight lanes store 32 bytes of a token.
  static __device__ void store_f32(const Params& p, const Tile& tile, const float (&sums)[kSums]) {
    const int thread = group_thread(), lane = thread % kWarp;
    const int row = group_index() * kTileRows + thread / kWarp * 16 + lane / 4;
    const Matrix& m = p.matrix[tile.matrix];
    auto* const out = static_cast<float*>(m.out) + tile.group * m.rows + tile.row + row;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      const int64_t token = tile.token + i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int next = i / 2 % 2 * 8;
      if (token < p.tokens && row + next < tile.rows) out[token * m.out_stride + next] = sums[i];
    }
  }
};

// Q8 of the sums rounded to bf16: 128 rows of a token, which the tile has, are a group of columns
// of the next product. A warp has a token, a lane four rows.
struct StoreQ8 {
  template <class C>
  static __device__ void run(const Params& p, Shared<C>& shared, const Tile& tile,
                             const float (&sums)[kSums]) {
    constexpr int kLaneRows = kRows / kWarp;
    ptx::barrier_sync(kConsumerBarrier, kConsumers);  // the tile before has been read
    stage_sums(shared, sums);
    ptx::barrier_sync(kConsumerBarrier, kConsumers);
    if (tile.rows == 0) return;
    const int warp = ptx::thread_index() / kWarp, lane = ptx::lane_id();
    const int row = lane * kLaneRows % kTileRows, tokens = min(kTokens, p.tokens - tile.token);
    const auto* const staging = shared.staging[lane * kLaneRows / kTileRows] + row % 8 * 2;
    const int row_count = p.matrix[0].rows;
    const int64_t columns = int64_t{p.groups} * row_count,
                  column = tile.group * row_count + tile.row;
#pragma unroll 4
    for (int token = warp; token < tokens; token += kConsumerWarps) {
      float u[kLaneRows];
      load<kLaneRows>(reinterpret_cast<const bf16*>(staging + staged_at(token, row / 8)), u);
      const int64_t at = (tile.token + token) * columns + column;
      warp_quantize_q8(u, p.codes + at + lane * kLaneRows, p.code_scales + at / kScaleColumns);
    }
  }
};

}  // namespace dsv4::gemm::large_m
