// What leaves a block: the end of a query's softmax, parts of a query and their merging.
//
//   out = sum_j w_j k_j / (sum_j w_j + 2^(sink - m)),  lse = ln(sum_j w_j) + m,  w_j = 2^(z_j - m)

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_consume.cuh"

namespace dsv4::mla90 {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Writes the statistics of one head; returns what its sum of values is multiplied with.
// reference: log2; largest: the largest logit, log2 (only looked at if asked for)
__device__ inline float finish_head(const Params& p, const Work& work, int head, float reference,
                                    float sum, float largest) {
  const bool any = sum > 0.f || sum != sum;
  const int64_t at = work.request * p.stat_batch_stride + work.query * p.stat_query_stride +
                     (work.first_head + head) * p.stat_head_stride;
  if (p.lse != nullptr) p.lse[at] = any ? (reference + log2f(sum)) * kLn2 : INFINITY;
  if (p.max_logits != nullptr) p.max_logits[at] = any ? largest * kLn2 : -INFINITY;
  if (!any) return 0.f;
  if (!p.normalized) return exp2f(reference - largest);
  const float sink = p.sink == nullptr ? -INFINITY : p.sink[work.first_head + head];
  return 1.f / (sum + exp2f(sink * kLog2E - reference));
}

__device__ inline int64_t out_offset(const Params& p, const Work& work, int head) {
  return work.request * p.out_batch_stride + work.query * p.out_query_stride +
         (work.first_head + head) * p.out_head_stride;
}

__device__ inline void store_pair(const Params& p, int64_t at, float low, float high) {
  if (p.out_f32) {
    *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = {low, high};
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<bf16*>(p.out) + at) = pack_bf16(low, high);
  }
}

// Calls put(dim, low, high) for the pairs of neighbouring dims of one head in this lane's part of
// O^T: registers i and i + 2 of every tile.
template <class Row, int kHeads, class Put>
__device__ void for_each_pair(const Consumer<Row, kHeads>& c, int i, const Put& put) {
  constexpr int kTiles = Consumer<Row, kHeads>::kOutTiles;
  const int first = 64 * kTiles * c.wg + 16 * c.warp;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    float a = c.out[t][i], b = c.out[t][i + 2];
    int dim = first + 2 * c.g;
    if (Row::kRopeIsValue && t == kTiles - 1 && c.wg == 1) {
      // Rows are dims g and g + 8; lanes of even and odd g swap one of them.
      const bool odd = c.g % 2 != 0;
      const float other = __shfl_xor_sync(~0u, odd ? a : b, 4);
      a = odd ? other : a, b = odd ? b : other;
      dim = first + c.g + (odd ? 7 : 0);
    }
    put(dim + 64 * t, a, b);
  }
}

// sums of this lane -> Shared::factor[head] = the head's sum, over all keys; both warpgroups meet.
template <class Row, int kHeads>
__device__ void add_sums(const Consumer<Row, kHeads>& c) {
#pragma unroll
  for (int n = 0; n < kHeads / 8; ++n) {
    for (int i = 0; i < 2; ++i) {
      float sum = c.sums[2 * n + i];
      for (int lanes = 4; lanes < kWarp; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
      if (c.g == n % 8) c.shared.sums[4 * c.wg + c.warp][8 * n + 2 * c.j + i] = sum;
    }
  }
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  if (static_cast<int>(threadIdx.x) < kHeads) {
    float sum = 0.f;
    for (int w = 0; w < 8; ++w) sum += c.shared.sums[w][threadIdx.x];
    c.shared.factor[threadIdx.x] = sum;
  }
}

// The whole query was here. bf16 only; through shared memory, whose q nobody needs any more, so
// that rows leave in 16-byte pieces.
template <class Row, int kHeads>
__device__ void store_output(const Consumer<Row, kHeads>& c, const Work& work) {
  constexpr int kStride = kWidthV * 2 + 16;  // bytes from head to head: other banks
  static_assert(kHeads * kStride <= sizeof(c.shared.q) + sizeof(c.shared.weights));
  const Params& p = c.p;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHeads && work.first_head + thread < p.heads) {
    c.shared.factor[thread] = finish_head(p, work, thread, c.shared.reference[thread], c.shared.factor[thread],
                                          from_ordered_int(c.shared.largest[thread]));
  }
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  uint8_t* staged = c.shared.q[0];
  uint8_t* mine = staged + 2 * c.j * kStride;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int h = 8 * (i / 2) + i % 2;  // + 2j
    const float factor = c.shared.factor[h + 2 * c.j];
    for_each_pair(c, 4 * (i / 2) + i % 2, [&](int dim, float low, float high) {
      *reinterpret_cast<uint32_t*>(mine + h * kStride + 2 * dim) = pack_bf16(low * factor, high * factor);
    });
  }
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  constexpr int kPieces = kWidthV / 8;
  const int piece = thread % kPieces;
  auto* out = static_cast<bf16*>(p.out) + out_offset(p, work, thread / kPieces) + 8 * piece;
  const int heads = min(kHeads, p.heads - work.first_head);
#pragma unroll 4
  for (int h = thread / kPieces; h < heads; h += kConsumers / kPieces) {
    *reinterpret_cast<uint4*>(out) = *reinterpret_cast<const uint4*>(staged + h * kStride + 16 * piece);
    out += kConsumers / kPieces * p.out_head_stride;
  }
}

// A part of a query: sums relative to the reference.
template <class Row, int kHeads>
__device__ void store_part(const Consumer<Row, kHeads>& c, const Work& work) {
  const Params& p = c.p;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kHeads) {
    p.summary[int64_t{work.item} * kHeads + thread] = {c.shared.reference[thread], c.shared.factor[thread]};
  }
  float* mine = p.partial + (int64_t{work.item} * kHeads + 2 * c.j) * kWidthV;
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const int h = 8 * (i / 2) + i % 2;  // + 2j
    for_each_pair(c, 4 * (i / 2) + i % 2, [&](int dim, float low, float high) {
      *reinterpret_cast<float2*>(mine + h * kWidthV + dim) = {low, high};
    });
  }
}

// Whether this block's part is the last of its query; then the other parts can be read.
template <class Row, int kHeads>
__device__ bool arrive_last(const Params& p, const Work& work, Shared<Row, kHeads>& shared) {
  __threadfence();
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  if (threadIdx.x == 0) {
    const uint32_t before = atomicAdd(&p.arrivals[work.group], 1);
    shared.last = before + 1 == static_cast<uint32_t>(work.parts);
    if (shared.last != 0) p.arrivals[work.group] = 0;
  }
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  __threadfence();
  return shared.last != 0;
}

// Adds up the parts of a query in order. A warp has a head at a time, a lane 16 dims of it.
template <class Row, int kHeads>
__device__ void merge(const Params& p, const Work& work) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head_group = work.item % p.head_groups;
  const int first = (work.item / p.head_groups / p.chunks * p.chunks) * p.head_groups + head_group;
  for (int head = warp; head < kHeads && work.first_head + head < p.heads; head += kConsumers / kWarp) {
    float reference = -INFINITY;
    for (int i = 0; i < work.parts; ++i) {
      const float2 summary = __ldcg(&p.summary[int64_t{first + i * p.head_groups} * kHeads + head]);
      if (summary.y != 0.f) reference = fmaxf(reference, summary.x);
    }
    float sum = 0.f;
    float4 values[4] = {};
    for (int i = 0; i < work.parts; ++i) {
      const int64_t at = int64_t{first + i * p.head_groups} * kHeads + head;
      const float2 summary = __ldcg(&p.summary[at]);
      if (summary.y == 0.f) continue;
      const float share = exp2f(summary.x - reference);
      sum = fmaf(share, summary.y, sum);
      const auto* part = reinterpret_cast<const float4*>(p.partial + at * kWidthV);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float4 v = __ldcg(&part[k * kWarp + lane]);
        values[k].x = fmaf(share, v.x, values[k].x);
        values[k].y = fmaf(share, v.y, values[k].y);
        values[k].z = fmaf(share, v.z, values[k].z);
        values[k].w = fmaf(share, v.w, values[k].w);
      }
    }
    // Parts keep their largest logit as the reference where it is asked for.
    const float factor = finish_head(p, work, head, reference, sum, reference);
    const int64_t to = out_offset(p, work, head);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t at = to + 4 * (k * kWarp + lane);
      store_pair(p, at, values[k].x * factor, values[k].y * factor);
      store_pair(p, at + 2, values[k].z * factor, values[k].w * factor);
    }
  }
}

}  // namespace dsv4::mla90
