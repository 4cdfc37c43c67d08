// The products of a warp in a round: its units of columns, and of each unit all its tiles.
//
// A lane (row g = lane / 4, quarter c = lane % 4) decodes block c of the unit in rows g and g + 8
// of a tile, four columns at a time: an A fragment of mma.sync, whose columns are then in the order
// of the quarters. B fragments of x have the same order and stay in registers for all tiles:
// block c of token g, 16 words.

#pragma once

#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/mma_f16.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/gemm/cuda/kbit_stream/ring.cuh"
#include "dsv4/ops/gemm/weights/kbit_lookup.cuh"

namespace dsv4::gemm::kbit_stream {

inline constexpr int kBlockPairs = kBlock / 2;

// Sums of a round: C fragments by tile and by eight tokens.
template <int kTokens>
using Sums = float[max_group_tiles(kTokens)][kTokens / 8][4];

// Block c of a unit of token g of each eight tokens. Zeros where there is no token and no column.
template <int kTokens>
class XBlocks {
 public:
  __device__ void load(const Params& p, const Share& share, int first_token, int unit) {
    const int column = unit * kUnit + share.lane % 4 * kBlock;
#pragma unroll
    for (int s = 0; s < kTokens / 8; ++s) {
      const int token = first_token + s * 8 + share.lane / 4;
      const bool there = token < p.tokens && column < p.k && unit < share.end_unit;
      load_block(s, p.x + token * p.x_stride + column, there);
    }
  }
  // s: of eight tokens; from: the lane's block
  __device__ void load_block(int s, const uint16_t* from, bool there) {
#pragma unroll
    for (int i = 0; i < kBlockPairs / 4; ++i) {
      const uint4 words = there ? __ldg(reinterpret_cast<const uint4*>(from) + i) : uint4{};
      pair[s][4 * i] = words.x, pair[s][4 * i + 1] = words.y;
      pair[s][4 * i + 2] = words.z, pair[s][4 * i + 3] = words.w;
    }
  }
  uint32_t pair[kTokens / 8][kBlockPairs];
};

// The scale bytes of a lane's block in its two rows of each tile of a round. Rows and blocks that
// do not exist repeat the last one: their sums are not stored, or x is zero there.
template <int kTiles, bool kWhole>
class Scales {
 public:
  static constexpr int kBlocks = kUnit / kBlock;

  // Requests those of the first unit of a round. row, block: of the lane, in the first tile
  __device__ void start(const Params& p, int tiles, int row, int block) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) byte_[i][r] = *clamped(p, row + i * kTileRows + r * 8, block);
    eight_rows_ = static_cast<uint32_t>(8 * p.scale_stride);
    back_ = kBlocks - static_cast<uint32_t>(tiles) * 2 * eight_rows_;
    row_ = row;
    block_ = block + kBlocks;
    at_ = static_cast<uint32_t>(row) * static_cast<uint32_t>(p.scale_stride) +
          static_cast<uint32_t>(block_);
  }
  // After the tiles of a unit.
  __device__ void next_unit() {
    at_ += back_, block_ += kBlocks;
  }
  // Gives those of tile i and requests those of the next unit. Tiles come in order.
  __device__ void take(const Params& p, int i, bool more, uint32_t (&byte)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) byte[r] = byte_[i][r];
    if (more) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        byte_[i][r] = __ldg(kWhole ? p.scale + (at_ + r * eight_rows_)
                                   : clamped(p, row_ + i * kTileRows + r * 8, block_));
    }
    at_ += 2 * eight_rows_;
  }

 private:
  static __device__ const uint8_t* clamped(const Params& p, int row, int block) {
    return p.scale + min(row, p.n - 1) * p.scale_stride + min(block, p.k / kBlock - 1);
  }

  uint32_t at_;  // of row g of the tile to come, in the unit to come
  uint32_t eight_rows_, back_;
  int row_, block_;  // of the first tile, in the unit to come
  uint32_t byte_[kTiles][2];
};

template <class X>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<X, f16>) {
    ptx::mma_m16n8k16_f16(c, a, b0, b1);
  } else {
    ptx::mma_m16n8k16_bf16(c, a, b0, b1);
  }
}

// slot: of the lane's block in row g.
template <int K, class X, int kTokens>
__device__ inline void multiply_slot(const unsigned char* slot, const unsigned char* table,
                                     uint32_t lane_bytes, const uint32_t (&scale)[2],
                                     const XBlocks<kTokens>& x, float (&sums)[kTokens / 8][4]) {
  using Lookup = KbitLookup<K, X>;
  typename Lookup::Codes codes[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t plane[K];
    load_planes<K>(slot + r * kUnit * K, plane);
    codes[r] = Lookup::codes(plane, lane_bytes);
  }
#pragma unroll
  for (int t = 0; t < kBlock / 4; ++t) {
    uint32_t a[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint32_t two[2];
      Lookup::look_up(codes[r], t, lane_bytes, table, two);
      a[r] = Lookup::scaled(two[0], scale[r]);
      a[2 + r] = Lookup::scaled(two[1], scale[r]);
    }
#pragma unroll
    for (int s = 0; s < kTokens / 8; ++s)
      mma<X>(sums[s], a, x.pair[s][2 * t], x.pair[s][2 * t + 1]);
  }
}

template <int K, class X, int kTokens, bool kWhole>
__device__ void multiply(const Params& p, const Share& share, int round, int first_token,
                         const unsigned char* slots, const unsigned char* table,
                         Ring<K, kWhole>& ring, Scales<max_group_tiles(kTokens), kWhole>& scales,
                         XBlocks<kTokens>& next_x, Sums<kTokens>& sums) {
  using Lookup = KbitLookup<K, X>;
  constexpr int kTiles = max_group_tiles(kTokens);
  const int tiles = share.tiles(p.plan, round);
  const uint32_t lane_bytes = ptx::opaque(Lookup::lane_bytes());
  const int offset =
      ptx::opaque(share.lane / 4 * (kUnit / 8 * K) + share.lane % 4 * (kBlock / 8 * K));
#pragma unroll
  for (auto& tile : sums)
#pragma unroll
    for (auto& eight : tile)
#pragma unroll
      for (float& sum : eight) sum = 0;
  XBlocks<kTokens> x;
#pragma unroll 1
  for (int unit = share.first_unit; unit < share.end_unit; ++unit) {
    const bool more = unit + 1 < share.end_unit;
    if constexpr (kTokens == 8) {
      x = next_x;
      // The first unit again for the next round.
      next_x.load(p, share, first_token, more ? unit + 1 : share.first_unit);
    } else {
      x.load(p, share, first_token, unit);  // there are no registers for two units
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i >= tiles) break;
      const unsigned char* const slot = slots + (offset + ring.next());
      uint32_t scale[2];
      scales.take(p, i, more, scale);
      scale[0] *= Lookup::kScaleUnit, scale[1] *= Lookup::kScaleUnit;
      multiply_slot<K, X, kTokens>(slot, table, lane_bytes, scale, x, sums[i]);
    }
    scales.next_unit();
  }
}

}  // namespace dsv4::gemm::kbit_stream
