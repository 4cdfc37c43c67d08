// Scores of a CTA's slice of entries, as order keys in shared memory, and their first digit.

#pragma once

#include "dsv4/device/select.cuh"
#include "dsv4/ops/model/index_select/sm90_few/params.cuh"

namespace dsv4::index_select_kernel::sm90_few {

// Scores are bf16, so 16 bits hold their order. 0: -inf or NaN, which is never chosen.
__device__ inline uint32_t short_key(float score) {
  return order_key(to_float(from_float<bf16>(score))) >> 16;
}

// A tile of 16 entries of a warp, while its bytes are on the way.
struct Entries {
  indexer_kernel::PackedDims dims[2];  // of entries g and g + 8

  // Entries first ..; those from `end` on are zeros.
  __device__ void load(const indexer_kernel::Keys& keys, const int32_t* pages, int first, int end) {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int s = first + 8 * which + g;
      dims[which] = {};
      if (s < end) dims[which] = indexer_kernel::load_dims(keys, pages, s);
    }
  }
  __device__ void decode(indexer_kernel::KeyTile& tile) const {
    indexer_kernel::decode_dims(dims[0], 0, tile);
    indexer_kernel::decode_dims(dims[1], 1, tile);
  }
};

// order: keys of entries [begin, end), from 0 on; bins: their first digits are added. The query is
// brought to b and pairs. All threads; followed by a barrier.
template <class C, class W>
__device__ void score_slice(const Params& p, int64_t query, int begin, int end, uint4* b,
                            uint32_t* pairs, uint16_t* order, int* bins) {
  const int32_t* const pages = p.pages + p.sequence[query] * p.pages_stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            g = static_cast<int>(threadIdx.x) % kWarp / 4;
  Entries entries;
  int first = begin + warp * indexer_kernel::kTileKeys;
  entries.load(p.keys, pages, first, end);
  indexer_kernel::load_query(p.queries, query, static_cast<const W*>(p.weights), b, pairs);
  __syncthreads();
  for (; first < end; first += C::kPassKeys) {
    indexer_kernel::KeyTile tile[1];
    entries.decode(tile[0]);
    entries.load(p.keys, pages, first + C::kPassKeys, end);
    float sums[1][2] = {};
    indexer_kernel::score<1, C::kTogether>(tile, b, pairs, p.queries.groups(), sums);
    if (threadIdx.x % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int s = first + 8 * r + g;
        if (s >= end) continue;
        const uint32_t key = short_key(sums[0][r]);
        order[s - begin] = static_cast<uint16_t>(key);
        if (key != 0) atomicAdd(&bins[key >> kDigitBits], 1);
      }
    }
    __syncwarp();
  }
}

}  // namespace dsv4::index_select_kernel::sm90_few
