// Scores of a CTA's slice of entries, as order keys in shared memory, and their first digit.

#pragma once

#include "dsv4/device/select.cuh"
#include "dsv4/ops/index_select/sm90_few/params.cuh"

namespace dsv4::index_select_kernel::sm90_few {

// Scores are bf16, so 16 bits hold their order. 0: -inf or NaN, which is never chosen.
__device__ inline uint32_t short_key(float score) {
  return order_key(to_float(from_float<bf16>(score))) >> 16;
}

// kTiles tiles of 16 entries of a warp: their dims while they are on the way, then operand A.
template <int kTiles>
struct Entries {
  index_mma::PackedDims dims[kTiles][2];

  // Entries first ..; those from `end` on are zeros.
  __device__ void load(const index_mma::Keys& keys, const int32_t* pages, int first, int end) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const int s = first + index_mma::kTileKeys * tile + 8 * which + g;
        dims[tile][which] = {};
        if (s < end) dims[tile][which] = index_mma::load_dims(keys, pages, s);
      }
    }
  }
  __device__ void decode(index_mma::KeyTile (&tiles)[kTiles]) const {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int which = 0; which < 2; ++which)
        index_mma::decode_dims(dims[tile][which], which, tiles[tile]);
    }
  }
};

// order: keys of entries [begin, end), from 0 on; bins: their first digits are added. The query is
// brought to b and pairs. All threads; followed by a barrier.
template <int kTiles, class W>
__device__ void score_slice(const Params& p, int64_t query, int begin, int end, uint4* b,
                            uint32_t* pairs, uint16_t* order, int* bins) {
  constexpr int kWarpKeys = kTiles * index_mma::kTileKeys;
  const int32_t* const pages = p.pages + p.sequence[query] * p.pages_stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, g = threadIdx.x % kWarp / 4;
  Entries<kTiles> entries;
  int first = begin + warp * kWarpKeys;
  entries.load(p.keys, pages, first, end);
  index_mma::load_query(p.queries, query, static_cast<const W*>(p.weights), b, pairs);
  __syncthreads();
  for (; first < end; first += kWarps * kWarpKeys) {
    index_mma::KeyTile tiles[kTiles];
    entries.decode(tiles);
    entries.load(p.keys, pages, first + kWarps * kWarpKeys, end);
    float sums[kTiles][2] = {};
    index_mma::score(tiles, b, pairs, p.queries.groups(), sums);
    if (threadIdx.x % 4 == 0) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int s = first + index_mma::kTileKeys * tile + 8 * r + g;
          if (s >= end) continue;
          const uint32_t key = short_key(sums[tile][r]);
          order[s - begin] = static_cast<uint16_t>(key);
          if (key != 0) atomicAdd(&bins[key >> kDigitBits], 1);
        }
      }
    }
    __syncwarp();
  }
}

}  // namespace dsv4::index_select_kernel::sm90_few
