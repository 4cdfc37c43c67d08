// What leaves a block: the end of a query's softmax. Queries of several blocks: sm90_fp8_merge.cuh.
//
//   out = sum_j w_j k_j / (sum_j w_j + 2^(sink - m)),  lse = ln(sum_j w_j) + m,  w_j = 2^(z_j - m)
//
// The two warpgroups store their halves of the dims on their own; of the other one they need the
// sums only.

#pragma once

#include <type_traits>

#include "dsv4/ops/sparse_mla/sm90_fp8_consumer.cuh"

namespace dsv4::sm90_fp8 {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

__device__ inline float sink_of(const Params& p, const Work& work, int head) {
  return p.sink == nullptr ? -INFINITY : p.sink[work.first_head + head];
}

// Writes the statistics of one head, if `writes`; returns what its sum of values is multiplied
// with. reference: log2; largest: the largest logit, log2 (only looked at if asked for)
__device__ inline float finish_head(const Params& p, const Work& work, int head, float reference,
                                    float sum, float largest, float sink, bool writes) {
  const bool any = sum > 0.f || sum != sum;
  if (writes && p.lse != nullptr)
    p.lse[offset_of(p.lse_at, work, head)] = any ? (reference + log2f(sum)) * kLn2 : INFINITY;
  if (writes && p.max_logits != nullptr)
    p.max_logits[offset_of(p.max_at, work, head)] = any ? largest * kLn2 : -INFINITY;
  if (!any) return 0.f;
  if (!p.normalized) return exp2f(reference - largest);
  return 1.f / (sum + exp2f(sink * kLog2E - reference));
}

__device__ inline void store_pair(const Params& p, int64_t at, float low, float high) {
  if (p.out_f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = {low, high};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(p.out) + at) = pack_bf16(low, high);
  }
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
template <class Row, int kHeads, bool kF32>
__device__ void store_values(const Consumer<Row, kHeads>& c, const Work& work) {
  using T = std::conditional_t<kF32, float, bf16>;
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
        if constexpr (kF32) {
          *reinterpret_cast<float2*>(to + dims[t]) = {low, high};
        } else {
          *reinterpret_cast<uint32_t*>(to + dims[t]) = pack_bf16(low, high);
        }
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
    return finish_head(p, work, head, reference, sum, largest, sink_of(p, work, head),
                       this_lane().wg == 0);
  });
  if (p.out_f32) {
    store_values<Row, kHeads, true>(c, work);
  } else {
    store_values<Row, kHeads, false>(c, work);
  }
}

}  // namespace dsv4::sm90_fp8
