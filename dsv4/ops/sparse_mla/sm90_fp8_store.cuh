// The values of a query leave its block. The two warpgroups store their halves of the dims on their
// own. Queries of several blocks: sm90_fp8_merge.cuh.

#pragma once

#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_consumer.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_sums.cuh"

namespace dsv4::sm90_fp8 {

__device__ inline void store_pair(float* to, float low, float high) {
  *reinterpret_cast<float2*>(to) = {low, high};
}
__device__ inline void store_pair(bf16* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = pack_bf16(low, high);
}

// Rows of the RoPE tile are dims g and g + 8 where other tiles have 2g and 2g + 1: lanes of even
// and odd g swap one of them, and then have dims g, g + 1 or g + 7, g + 8.
template <class Row, int kHeads>
__device__ void pair_rope_dims(Consumer<Row, kHeads>& c) {
  const Lane at = this_lane();
  if (!Row::kRopeIsValue || at.wg == 0) return;
  const bool odd = at.g % 2 != 0;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    float &a = c.out[kOutTiles - 1][i / 2 * 4 + i % 2],
          &b = c.out[kOutTiles - 1][i / 2 * 4 + i % 2 + 2];
    const float other = __shfl_xor_sync(~0u, odd ? a : b, 4);
    a = odd ? other : a, b = odd ? b : other;
  }
}

// The dim of registers i and its neighbour that of i + 2 in tile t of a lane's part of O^T, behind
// pair_rope_dims().
template <class Row>
__device__ int first_dim(const Lane& at, int t) {
  const bool rope = Row::kRopeIsValue && t == kOutTiles - 1 && at.wg == 1;
  const int pair = rope ? at.g + (at.g % 2 != 0 ? 7 : 0) : 2 * at.g;
  return 64 * (kOutTiles * at.wg + t) + 16 * at.warp + pair;
}

// Shared::factor of a query that was here as a whole, and its statistics.
template <class Row, int kHeads>
__device__ void finish_sums(const Consumer<Row, kHeads>& c, const Work& work) {
  const Lane at = this_lane();
  const Params& p = c.p;
  const Item<kHeads>& item = c.item();
  const int head = at.warp * kWarp + at.lane;
  if (head < min(kHeads, p.heads - work.first_head)) {
    const float sum = sum_of(item, head), reference = item.reference[reference_place<kHeads>(head)];
    const float largest = from_ordered_int(item.largest[head]);
    if (at.wg == 0) store_statistics(p, work, head, reference, sum, largest);
    c.shared.factor[at.wg][head] =
        output_factor(p, reference, sum, largest, sink_of(p, work, head));
  }
  ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
}

// The whole query was here. Eight lanes write 32 bytes of a head (bf16).
template <class T, class Row, int kHeads>
__device__ void store_values(const Consumer<Row, kHeads>& c, const Work& work) {
  const Lane at = this_lane();
  const Params& p = c.p;
  const int heads = p.heads - work.first_head;
  auto* to = static_cast<T*>(p.out) + offset_of(p.out_at, work, 2 * at.j);
  int dims[kOutTiles];
  for (int t = 0; t < kOutTiles; ++t) dims[t] = first_dim<Row>(at, t);
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int head = 8 * (i / 2) + i % 2 + 2 * at.j, r = 4 * (i / 2) + i % 2;
    const float factor = c.shared.factor[at.wg][head];
    if (head < heads) {
#pragma unroll
      for (int t = 0; t < kOutTiles; ++t) {
        const float low = c.out[t][r] * factor, high = c.out[t][r + 2] * factor;
        store_pair(to + dims[t], low, high);
      }
    }
    to += (i % 2 == 0 ? 1 : 7) * p.out_at.head;
  }
}

template <class Row, int kHeads>
__device__ void store_output(const Consumer<Row, kHeads>& c, const Work& work) {
  c.p.out_f32 ? store_values<float>(c, work) : store_values<bf16>(c, work);
}

}  // namespace dsv4::sm90_fp8
