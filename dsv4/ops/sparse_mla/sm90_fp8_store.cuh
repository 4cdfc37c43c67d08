// What leaves a block: the end of a query's softmax, parts of a query and their merging.
//
//   out = sum_j w_j k_j / (sum_j w_j + 2^(sink - m)),  lse = ln(sum_j w_j) + m,  w_j = 2^(z_j - m)

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_consume.cuh"

namespace dsv4::sm90_fp8 {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Writes the statistics of one head, if `writes`; returns what its sum of values is multiplied
// with. reference: log2; largest: the largest logit, log2 (only looked at if asked for)
__device__ inline float finish_head(const Params& p, const Work& work, int head, float reference,
                                    float sum, float largest, bool writes) {
  const bool any = sum > 0.f || sum != sum;
  if (writes && p.lse != nullptr)
    p.lse[offset_of(p.lse_at, work, head)] = any ? (reference + log2f(sum)) * kLn2 : INFINITY;
  if (writes && p.max_logits != nullptr)
    p.max_logits[offset_of(p.max_at, work, head)] = any ? largest * kLn2 : -INFINITY;
  if (!any) return 0.f;
  if (!p.normalized) return exp2f(reference - largest);
  const float sink = p.sink == nullptr ? -INFINITY : p.sink[work.first_head + head];
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
    float &a = c.out[c.kOutTiles - 1][i / 2 * 4 + i % 2],
          &b = c.out[c.kOutTiles - 1][i / 2 * 4 + i % 2 + 2];
    const float other = __shfl_xor_sync(~0u, odd ? a : b, 4);
    a = odd ? other : a, b = odd ? b : other;
  }
}

// Calls put(dim, low, high) for the pairs of neighbouring dims of one head in this lane's part of
// O^T: registers i and i + 2 of every tile.
template <class Row, int kHeads, class Put>
__device__ void for_each_pair(const Consumer<Row, kHeads>& c, const Lane& at, int i,
                              const Put& put) {
  const int first = 64 * c.kOutTiles * at.wg + 16 * at.warp;
  const int dim = first + 2 * at.g, rope_dim = first + at.g + (at.g % 2 != 0 ? 7 : 0);
#pragma unroll
  for (int t = 0; t < c.kOutTiles; ++t) {
    const bool rope = Row::kRopeIsValue && t == c.kOutTiles - 1 && at.wg == 1;
    put((rope ? rope_dim : dim) + 64 * t, c.out[t][i], c.out[t][i + 2]);
  }
}

// Sums of the warps -> Shared::factor[head], the sum over all keys: store_output() makes a factor
// of it, store_part() passes it on. Both warpgroups meet; thread number `head` has it.
template <class Row, int kHeads>
__device__ void add_sums(Consumer<Row, kHeads>& c) {
  const Lane at = this_lane();
  for_each_head<kHeads>(
      c.sums, [&](int head, float sum) { c.shared.sums[4 * at.wg + at.warp][head] = sum; });
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  const int thread = this_thread();
  if (thread < kHeads) {
    float sum = 0.f;
    for (int w = 0; w < 8; ++w) sum += c.shared.sums[w][thread];
    c.shared.factor[thread] = sum;
  }
}

// The whole query was here; bf16 only. Eight lanes write 32 bytes of a head.
template <class Row, int kHeads>
__device__ void store_output(const Consumer<Row, kHeads>& c, const Work& work) {
  const Lane at = this_lane();
  const Params& p = c.p;
  const int thread = this_thread(), heads = p.heads - work.first_head;
  if (thread < kHeads && thread < heads) {
    c.shared.factor[thread] =
        finish_head(p, work, thread, c.shared.reference[reference_place<kHeads>(thread)],
                    c.shared.factor[thread], from_ordered_int(c.shared.largest[thread]), true);
  }
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  auto* to = static_cast<bf16*>(p.out) + offset_of(p.out_at, work, 2 * at.j);
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int head = 8 * (i / 2) + i % 2 + 2 * at.j;
    const float factor = c.shared.factor[head];
    for_each_pair(c, at, 4 * (i / 2) + i % 2, [&](int dim, float low, float high) {
      if (head < heads)
        *reinterpret_cast<uint32_t*>(to + dim) = pack_bf16(low * factor, high * factor);
    });
    to += (i % 2 == 0 ? 1 : 7) * p.out_at.head;
  }
}

// A part of a query: sums relative to the reference.
template <class Row, int kHeads>
__device__ void store_part(const Consumer<Row, kHeads>& c, int64_t part) {
  const Lane at = this_lane();
  const Params& p = c.p;
  const int thread = this_thread();
  if (thread < kHeads) {
    p.summary[part * kHeads + thread] = {c.shared.reference[reference_place<kHeads>(thread)],
                                         c.shared.factor[thread]};
  }
  float* mine = p.partial + (part * kHeads + 2 * at.j) * kWidthV;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int h = 8 * (i / 2) + i % 2;  // + 2j
    for_each_pair(c, at, 4 * (i / 2) + i % 2, [&](int dim, float low, float high) {
      *reinterpret_cast<float2*>(mine + h * kWidthV + dim) = {low, high};
    });
  }
}

// Where the parts of exchange number `exchanges` of this block's cluster begin. Two sets in turn:
// who has everybody's parts of one exchange knows that everybody has read those of the exchange
// before.
__device__ inline int64_t first_part(const Params& p, int exchanges) {
  return int64_t{2 * first_item(p) + exchanges % 2} * p.chunks;
}

// The parts of all blocks of the cluster are there, and can be read.
template <class Row, int kHeads>
__device__ void exchange_parts(const Params& p, Shared<Row, kHeads>& shared, int exchanges) {
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  const int thread = this_thread();
  if (thread < p.chunks) shared.parts.arrive_in_cluster(static_cast<uint32_t>(thread));
  shared.parts.wait_in_cluster(exchanges % 2);
}

// Adds up the parts of a query in order. A warp has a head and 128 dims at a time, a lane 4 dims.
template <class Row, int kHeads>
__device__ void merge(const Params& p, const Work& work, int64_t parts) {
  const int thread = this_thread(), warp = thread / kWarp, lane = thread % kWarp;
  constexpr int kPieces = kWidthV / (4 * kWarp), kWarps = kConsumers / kWarp;
  for (int i = chunk_of_block(p) * kWarps + warp; i < kHeads * kPieces; i += p.chunks * kWarps) {
    const int head = i / kPieces, dim = 4 * kWarp * (i % kPieces) + 4 * lane;
    if (work.first_head + head >= p.heads) return;
    const int64_t first = parts * kHeads + head;
    float2 summary[kMaxChunks];
    float4 part[kMaxChunks];
    float reference = -INFINITY;
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      summary[c] = {0.f, 0.f};
      part[c] = {0.f, 0.f, 0.f, 0.f};
      if (c < work.parts) {
        summary[c] = __ldcg(&p.summary[first + c * kHeads]);
        part[c] = __ldcg(
            reinterpret_cast<const float4*>(p.partial + (first + c * kHeads) * kWidthV + dim));
      }
    }
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      if (summary[c].y != 0.f) reference = fmaxf(reference, summary[c].x);
    }
    float sum = 0.f;
    float4 values{};
#pragma unroll
    for (int c = 0; c < kMaxChunks; ++c) {
      const float share = summary[c].y == 0.f ? 0.f : exp2f(summary[c].x - reference);
      sum = fmaf(share, summary[c].y, sum);
      values.x = fmaf(share, part[c].x, values.x);
      values.y = fmaf(share, part[c].y, values.y);
      values.z = fmaf(share, part[c].z, values.z);
      values.w = fmaf(share, part[c].w, values.w);
    }
    // Parts keep their largest logit as the reference where it is asked for.
    const float factor =
        finish_head(p, work, head, reference, sum, reference, i % kPieces == 0 && lane == 0);
    const int64_t at = offset_of(p.out_at, work, head) + dim;
    store_pair(p, at, values.x * factor, values.y * factor);
    store_pair(p, at + 2, values.z * factor, values.w * factor);
  }
}

}  // namespace dsv4::sm90_fp8
