// Queries whose list is cut among the blocks of a cluster: every block stores its part, all wait
// for all, and each merges some of the values, over the parts in order.
//
//   out = factor sum_c 2^(m_c - m) s_c v_c      m = max_c m_c, v_c = O_c / s_c, s_c: its sum
//
// If asked for (Plan::invariant), a query that has keys in one part only leaves from there, in f32
// as if it had not been cut: what stands in lists behind its last key changes no bit.
//
// v_c is f16: as exact as the weights it is made of, and the way through L2 is what merging costs.
// It travels as it lies in registers: the four values of a thread in unit u = kOutTiles (head / 8)
// + t, two dims each of two heads, are 8 bytes, those of a warp 256.

#pragma once

#include <algorithm>

#include "dsv4/ops/sparse_mla/sm90_fp8_store.cuh"

namespace dsv4::sm90_fp8 {

template <int kHeads>
constexpr int kUnits = kHeads / 8 * kOutTiles;

// Where the parts of an exchange of this block's cluster begin. Two sets take turns: who has
// everybody's parts of one exchange knows that everybody has read those of the exchange before.
__device__ inline int64_t first_part(const Params& p, const Exchange& at) {
  return int64_t{2 * first_item(p) + at.turn} * p.chunks;
}
template <int kHeads>
__device__ uint2* part_values(const Params& p, int64_t part) {
  return p.partial + part * kUnits<kHeads> * kConsumers;
}

// What this block has of a query. True in some thread if that is anything.
template <class Row, int kHeads>
__device__ bool store_part(const Consumer<Row, kHeads>& c, int64_t part) {
  const Params& p = c.p;
  bool has_keys = false;
  finish_sums(c, [&](int head, float reference, float sum, float) {
    if (this_lane().wg == 0) p.summary[part * kHeads + head] = {reference, sum, 1.f, 0.f};
    has_keys = sum != 0.f;
    return has_keys ? 1.f / sum : 0.f;
  });
  const Lane at = this_lane();
  uint2* to = part_values<kHeads>(p, part) + this_thread();
  const float* factors = c.shared.factor[at.wg] + 2 * at.j;
#pragma unroll
  for (int n = 0; n < kHeads / 8; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(factors + 8 * n);
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      const float* v = c.out[t] + 4 * n;
      to[(n * kOutTiles + t) * kConsumers] = {pack_f16(v[0] * f.x, v[2] * f.x),
                                              pack_f16(v[1] * f.y, v[3] * f.y)};
    }
  }
  return has_keys;
}

constexpr int kSeveral = -1;

// The parts of all blocks of the cluster are there, and can be read. has_keys: of this block's, in
// any thread. Returns the only one that has keys, 0 if none has, or kSeveral, also if nobody asks.
template <class Row, int kHeads>
__device__ int exchange_parts(const Params& p, Shared<Row, kHeads>& shared, const Exchange& at,
                              bool has_keys) {
  const bool any = p.invariant && ptx::barrier_any(kBarrierBoth, kConsumers, has_keys);
  // barrier_any() orders as much, but racecheck does not follow that instruction.
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  uint32_t* told = shared.has_keys[at.turn];
  ptx::Mbarrier& parts = shared.parts[at.turn];
  const int thread = this_thread();
  if (thread < p.chunks) {
    const auto block = static_cast<uint32_t>(thread);
    if (p.invariant) ptx::store_in_cluster(&told[chunk_of_block(p)], block, any);
    parts.arrive_in_cluster(block);
  }
  parts.wait_in_cluster(at.phase);
  if (!p.invariant) return kSeveral;
  int only = 0, count = 0;
  for (int part = 0; part < p.chunks; ++part) {
    if (told[part] != 0) only = part, ++count;
  }
  return count > 1 ? kSeveral : only;
}

// What the parts say of a query's heads: a lane has one part of one head, eight lanes that head.
// What is asked for first is there when the first values are.
template <int kHeads>
struct Summaries {
  static constexpr int kAtOnce = std::min(kHeads, kConsumers / kMaxChunks);
  static constexpr int kRounds = kHeads / kAtOnce;

  float4 summary[kRounds];  // reference, sum, what v_c was divided by
  float sink[kRounds];

  const int part = this_thread() % kMaxChunks, row = this_thread() / kMaxChunks;

  __device__ int head(int round) const { return round * kAtOnce + row; }

  __device__ Summaries(const Params& p, const Work& work, int64_t parts) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      summary[i] = {0.f, 0.f, 0.f, 0.f}, sink[i] = -INFINITY;
      if (head(i) >= kHeads || work.first_head + head(i) >= p.heads) continue;
      if (part < work.parts) summary[i] = __ldcg(&p.summary[(parts + part) * kHeads + head(i)]);
      sink[i] = sink_of(p, work, head(i));
    }
  }

  // Shared::shares: what the values of every part are multiplied with. Statistics are written by
  // the first block.
  template <class Row>
  __device__ void weigh(const Params& p, Shared<Row, kHeads>& shared, const Work& work) const {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (head(i) >= kHeads) return;  // whole warps
      const float4& mine = summary[i];
      float reference = mine.y != 0.f ? mine.x : -INFINITY, sum = 0.f;
#pragma unroll
      for (int lanes = kMaxChunks / 2; lanes > 0; lanes /= 2)
        reference = fmaxf(reference, __shfl_xor_sync(~0u, reference, lanes));
      const float weight = mine.y != 0.f ? mine.y * exp2f(mine.x - reference) : 0.f;
      const int first = row % (kWarp / kMaxChunks) * kMaxChunks;
#pragma unroll
      for (int c = 0; c < kMaxChunks; ++c) sum += __shfl_sync(~0u, weight, first + c);
      if (work.first_head + head(i) >= p.heads) continue;
      // Parts keep their largest logit as the reference where it is asked for.
      const float factor = finish_head(p, work, head(i), reference, sum, reference, sink[i],
                                       part == 0 && chunk_of_block(p) == 0);
      shared.shares[part][head(i)] = weight * factor * mine.z;  // in this order f32 holds it
    }
  }
};

// A warp has the units i chunks + block, its own registers' places in them. kParts: at least as
// many as there are, which are more than half of it; kAtOnce units are on their way at a time.
template <class Row, int kHeads, int kParts>
__device__ void add_parts(const Params& p, Shared<Row, kHeads>& shared, const Work& work,
                          int64_t parts) {
  constexpr int kFewest = kParts / 2 + 1;  // chunks
  constexpr int kAtOnce = std::min(32 / kParts, (kUnits<kHeads> + kFewest - 1) / kFewest);
  constexpr int kPart = kUnits<kHeads> * kConsumers;
  const Summaries<kHeads> summaries(p, work, parts);
  const uint2* from = part_values<kHeads>(p, parts) + this_thread();
  bool weighed = false;
  for (int first = chunk_of_block(p); first < kUnits<kHeads>; first += kAtOnce * p.chunks) {
    uint2 values[kAtOnce][kParts];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i * p.chunks;
      const uint2* at = from + unit * kConsumers;
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        values[i][c] = {0, 0};
        if (unit < kUnits<kHeads> && c < work.parts) values[i][c] = __ldcg(at + c * kPart);
      }
    }
    if (!weighed) {  // while the first values are on their way
      summaries.weigh(p, shared, work);
      ptx::barrier_sync(kBarrierBoth, kConsumers);
      weighed = true;
    }
    const Lane at = this_lane();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int unit = first + i * p.chunks, t = unit % kOutTiles;
      const int head = unit / kOutTiles * 8 + 2 * at.j;
      if (unit >= kUnits<kHeads>) break;
      float4 sum{};
#pragma unroll
      for (int c = 0; c < kParts; ++c) {
        const float2 share = *reinterpret_cast<const float2*>(&shared.shares[c][head]);
        const float2 a = __half22float2(as_half2(values[i][c].x));
        const float2 b = __half22float2(as_half2(values[i][c].y));
        sum.x = fmaf(share.x, a.x, sum.x), sum.y = fmaf(share.x, a.y, sum.y);
        sum.z = fmaf(share.y, b.x, sum.z), sum.w = fmaf(share.y, b.y, sum.w);
      }
      const int64_t to = offset_of(p.out_at, work, head) + first_dim<Row>(at, t);
      if (work.first_head + head < p.heads) store_pair(p, to, sum.x, sum.y);
      if (work.first_head + head + 1 < p.heads) store_pair(p, to + p.out_at.head, sum.z, sum.w);
    }
  }
}

template <class Row, int kHeads>
__device__ void merge(const Params& p, Shared<Row, kHeads>& shared, const Work& work,
                      int64_t parts) {
  if (p.chunks <= 2) {
    add_parts<Row, kHeads, 2>(p, shared, work, parts);
  } else if (p.chunks <= 4) {
    add_parts<Row, kHeads, 4>(p, shared, work, parts);
  } else {
    add_parts<Row, kHeads, 8>(p, shared, work, parts);
  }
}

}  // namespace dsv4::sm90_fp8
