// What leaves a block: the end of a query's softmax. Queries of several blocks: sm90_fp8_merge.cuh.
//
//   out = sum_j w_j k_j / (sum_j w_j + 2^(sink - m)),  lse = ln(sum_j w_j) + m,  w_j = 2^(z_j - m)
//
// The two warpgroups store their halves of the dims on their own; of the other one they need the
// sums only.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_consumer.cuh"

namespace dsv4::sm90_fp8 {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

__device__ inline float sink_of(const Params& p, const Work& work, int head) {
  return p.sink == nullptr ? -INFINITY : p.sink[work.first_head + head];
}

// The statistics of one head; reference and largest: log2.
__device__ inline void store_statistics(const Params& p, const Work& work, int head,
                                        float reference, float sum, float largest) {
  const bool any = sum > 0.f || sum != sum;
  if (p.lse != nullptr)
    p.lse[offset_of(p.lse_at, work, head)] = any ? (reference + log2f(sum)) * kLn2 : INFINITY;
  if (p.max_logits != nullptr)
    p.max_logits[offset_of(p.max_at, work, head)] = any ? largest * kLn2 : -INFINITY;
}

// What a head's sum of values is multiplied with. largest is only looked at if asked for.
__device__ inline float output_factor(const Params& p, float reference, float sum, float largest,
                                      float sink) {
  const bool any = sum > 0.f || sum != sum;
  if (!any) return 0.f;
  if (!p.normalized) return exp2f(reference - largest);
  return 1.f / (sum + exp2f(sink * kLog2E - reference));
}

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

// Shared::factor of this warpgroup: what visit(head, reference, sum, largest) gives.
template <class Row, int kHeads, class Visit>
__device__ void finish_sums(const Consumer<Row, kHeads>& c, const Visit& visit) {
  const Lane at = this_lane();
  const Item<kHeads>& item = c.item();
  const int head = at.warp * kWarp + at.lane;
  if (head < kHeads) {
    float sum = 0.f;
    for (int w = 0; w < 8; ++w) sum += item.sums[w][head];
    c.shared.factor[at.wg][head] = visit(head, item.reference[reference_place<kHeads>(head)], sum,
                                         from_ordered_int(item.largest[head]));
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
  const Params& p = c.p;
  finish_sums(c, [&](int head, float reference, float sum, float largest) {
    if (head >= p.heads - work.first_head) return 0.f;
    if (this_lane().wg == 0) store_statistics(p, work, head, reference, sum, largest);
    return output_factor(p, reference, sum, largest, sink_of(p, work, head));
  });
  p.out_f32 ? store_values<float>(c, work) : store_values<bf16>(c, work);
}

}  // namespace dsv4::sm90_fp8
