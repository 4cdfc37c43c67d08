// Queries whose list is cut among the blocks of a cluster: every block merges some of the values,
// over the parts in order, and the others bring it theirs.
//
//   out = factor sum_c 2^(m_c - m) s_c v_c      m = max_c m_c, v_c = O_c / s_c, s_c: its sum
//
// If asked for (Plan::invariant), a query that has keys in one part only leaves from there, in f32
// as if it had not been cut: what stands in lists behind its last key changes no bit.
//
// v_c is f16: as exact as the weights it is made of. It travels as it lies in registers: the four
// values of a thread in unit u = kOutTiles (head / 8) + t, two dims each of two heads, are 8 bytes.
// Unit u is merged by block u % chunks of the cluster, where it has place u / chunks.

#pragma once

#include <algorithm>

#include "dsv4/ops/sparse_mla/sm90_fp8_store.cuh"

namespace dsv4::sm90_fp8 {

// Where a block has a part of the units that it merges: unit i of a thread at
// [i kConsumers + thread].
template <class Row, int kHeads>
__device__ uint2* part_values(const Params& p, Shared<Row, kHeads>& shared, int part) {
  return reinterpret_cast<uint2*>(shared.q) + part * p.part_units * kConsumers;
}

template <class Row, int kHeads>
__device__ void tell_summary(const Params& p, Shared<Row, kHeads>& shared, int head,
                             float reference, float sum, float divisor) {
  const int part = chunk_of_block(p);
  for (int block = 0; block < p.chunks; ++block) {
    ptx::store_in_cluster(&shared.parts.reference[part][head], block, reference, shared.parts_full);
    ptx::store_in_cluster(&shared.parts.sum[part][head], block, sum, shared.parts_full);
    ptx::store_in_cluster(&shared.parts.divisor[part][head], block, divisor, shared.parts_full);
  }
}

// What this block has of a query, to the blocks that merge it. True in some thread if that is
// anything.
template <class Row, int kHeads>
__device__ bool send_part(const Consumer<Row, kHeads>& c) {
  const Params& p = c.p;
  bool has_keys = false;
  float my_reference = 0.f, my_sum = 0.f;
  finish_sums(c, [&](int, float reference, float sum, float) {
    my_reference = reference, my_sum = sum;
    has_keys = sum != 0.f;
    return has_keys ? 1.f / sum : 0.f;
  });
  const Lane at = this_lane();
  uint2* to = part_values(p, c.shared, chunk_of_block(p)) + this_thread();
  const float* factors = c.shared.factor[at.wg] + 2 * at.j;
  const int mine = chunk_of_block(p);
  int block = 0;
#pragma unroll
  for (int n = 0; n < kHeads / 8; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(factors + 8 * n);
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      const float* v = c.out[t] + 4 * n;
      const uint2 unit{pack_f16(v[0] * f.x, v[2] * f.x), pack_f16(v[1] * f.y, v[3] * f.y)};
      if (block == mine) {
        *to = unit;  // nobody else looks at it
      } else {
        ptx::store_in_cluster(to, block, unit, c.shared.parts_full);
      }
      if (++block == p.chunks) block = 0, to += kConsumers;
    }
  }
  if (this_thread() < kHeads) tell_summary(p, c.shared, this_thread(), my_reference, my_sum, 1.f);
  return has_keys;
}

constexpr int kSeveral = -1;

// What this block is sent of a query, by itself too; has_own: its own part it has.
template <int kHeads>
__device__ uint32_t bytes_of_parts(const Params& p, const Work& work, bool has_own) {
  // The last blocks may have one unit less.
  const int with_all = kUnits<kHeads> - (p.part_units - 1) * p.chunks;
  const int units = p.part_units - (chunk_of_block(p) < with_all ? 0 : 1);
  const int bytes = (work.parts - (has_own ? 1 : 0)) * units * kUnitBytes +
                    work.parts * kHeads * PartSummary<kHeads>::kHeadBytes;
  return static_cast<uint32_t>(bytes + (p.invariant ? p.chunks * 4 : 0));
}

// The parts of all blocks of the cluster are here. has_keys: of this block's, in any thread.
// Returns the only one that has keys, 0 if none has, or kSeveral, also if nobody asks.
template <class Row, int kHeads>
__device__ int wait_for_parts(const Params& p, Shared<Row, kHeads>& shared, int turn,
                              bool has_keys) {
  uint32_t* told = shared.parts.has_keys;
  if (p.invariant) {
    const uint32_t any = ptx::barrier_any(kBarrierBoth, kConsumers, has_keys) ? 1 : 0;
    const int block = this_thread();
    if (block < p.chunks)
      ptx::store_in_cluster(&told[chunk_of_block(p)], block, any, shared.parts_full);
  }
  shared.parts_full.wait_in_cluster(turn);
  if (!p.invariant) return kSeveral;
  int only = 0, count = 0;
  for (int part = 0; part < p.chunks; ++part) {
    if (told[part] != 0) only = part, ++count;
  }
  return count > 1 ? kSeveral : only;
}

// The softmax over all parts, of the heads that a thread weighs: a lane has one part of one head,
// eight lanes that head.
template <int kHeads>
struct PartWeights {
  static constexpr int kAtOnce = std::min(kHeads, kConsumers / kMaxChunks);
  static constexpr int kRounds = kHeads / kAtOnce;

  float sink[kRounds], reference[kRounds], sum[kRounds];

  __device__ static int part() { return this_thread() % kMaxChunks; }
  __device__ static int head(int round) { return round * kAtOnce + this_thread() / kMaxChunks; }
  __device__ static bool exists(const Params& p, const Work& work, int round) {
    return head(round) < kHeads && work.first_head + head(round) < p.heads && part() < work.parts;
  }

  // Asks for what will be needed behind the wait for the parts.
  __device__ PartWeights(const Params& p, const Work& work) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i)
      sink[i] = exists(p, work, i) ? sink_of(p, work, head(i)) : -INFINITY;
  }

  // PartSummary::reference becomes what the values of every part are multiplied with.
  __device__ void weigh(const Params& p, const Work& work, PartSummary<kHeads>& parts) {
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (head(i) >= kHeads) break;  // whole warps
      const float my_sum = exists(p, work, i) ? parts.sum[part()][head(i)] : 0.f;
      const float mine = my_sum != 0.f ? parts.reference[part()][head(i)] : -INFINITY;
      reference[i] = mine, sum[i] = 0.f;
#pragma unroll
      for (int lanes = kMaxChunks / 2; lanes > 0; lanes /= 2)
        reference[i] = fmaxf(reference[i], __shfl_xor_sync(~0u, reference[i], lanes));
      const float weight = my_sum != 0.f ? my_sum * exp2f(mine - reference[i]) : 0.f;
      const int first = this_thread() % kWarp / kMaxChunks * kMaxChunks;
#pragma unroll
      for (int c = 0; c < kMaxChunks; ++c) sum[i] += __shfl_sync(~0u, weight, first + c);
      if (!exists(p, work, i)) continue;
      // Parts keep their largest logit as the reference where it is asked for.
      const float factor = output_factor(p, reference[i], sum[i], reference[i], sink[i]);
      float& share = parts.reference[part()][head(i)];
      share = weight * factor * parts.divisor[part()][head(i)];  // in this order f32 holds it
    }
  }

  __device__ void store(const Params& p, const Work& work) const {
    if (part() != 0) return;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (exists(p, work, i))
        store_statistics(p, work, head(i), reference[i], sum[i], reference[i]);
    }
  }
};

// A warp has the units of its own registers' places. kParts: at least as many as there are.
template <class T, int kParts, class Row, int kHeads>
__device__ void add_parts(const Params& p, Shared<Row, kHeads>& shared, const Work& work) {
  const Lane at = this_lane();
  const uint2* from = part_values(p, shared, 0) + this_thread();
  const float* shares = shared.parts.reference[0] + 2 * at.j;
  T* first = static_cast<T*>(p.out) + offset_of(p.out_at, work, 2 * at.j);
  const int heads = p.heads - work.first_head - 2 * at.j;
  for (int unit = chunk_of_block(p); unit < kUnits<kHeads>; unit += p.chunks, from += kConsumers) {
    const int head = unit / kOutTiles * 8;  // and 2j more
    uint2 values[kParts];
    float2 share[kParts];
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      values[c] = {0, 0}, share[c] = {0.f, 0.f};
      if (c >= work.parts) continue;
      values[c] = from[c * p.part_units * kConsumers];
      share[c] = *reinterpret_cast<const float2*>(shares + c * kHeads + head);
    }
    float4 sum{};
#pragma unroll
    for (int c = 0; c < kParts; ++c) {
      const float2 a = __half22float2(as_half2(values[c].x));
      const float2 b = __half22float2(as_half2(values[c].y));
      sum.x = fmaf(share[c].x, a.x, sum.x), sum.y = fmaf(share[c].x, a.y, sum.y);
      sum.z = fmaf(share[c].y, b.x, sum.z), sum.w = fmaf(share[c].y, b.y, sum.w);
    }
    T* to = first + head * p.out_at.head + first_dim<Row>(at, unit % kOutTiles);
    if (head < heads) store_pair(to, sum.x, sum.y);
    if (head + 1 < heads) store_pair(to + p.out_at.head, sum.z, sum.w);
  }
}
template <class T, class Row, int kHeads>
__device__ void add_parts(const Params& p, Shared<Row, kHeads>& shared, const Work& work) {
  if (p.chunks <= 2) {
    add_parts<T, 2>(p, shared, work);
  } else if (p.chunks <= 4) {
    add_parts<T, 4>(p, shared, work);
  } else {
    add_parts<T, kMaxChunks>(p, shared, work);
  }
}

template <class Row, int kHeads>
__device__ void merge(const Params& p, Shared<Row, kHeads>& shared, const Work& work, int turn,
                      PartWeights<kHeads>& weights) {
  weights.weigh(p, work, shared.parts);
  shared.weighed.arrive();  // no named barrier: racecheck does not follow it here
  shared.weighed.wait(turn);
  p.out_f32 ? add_parts<float>(p, shared, work) : add_parts<bf16>(p, shared, work);
  if (chunk_of_block(p) == 0) weights.store(p, work);
}

// A query that is cut: send() gives this block's part away, all of it or, if it keeps_own, but the
// units that this block merges, and some of the values are merged here. Returns the only block that
// has keys, which has the whole query then, or kSeveral.
template <class Row, int kHeads, class Send>
__device__ int share_part(const Params& p, Shared<Row, kHeads>& shared, const Work& work, int turn,
                          bool keeps_own, const Send& send) {
  const bool has_part = chunk_of_block(p) < work.parts;
  if (this_thread() == 0) {
    shared.parts_full.expect(bytes_of_parts<kHeads>(p, work, keeps_own && has_part));
    shared.parts_full.arrive();
  }
  shared.room.wait_in_cluster(turn);
  const bool has_keys = has_part && send();
  PartWeights<kHeads> weights(p, work);
  const int only = wait_for_parts(p, shared, turn, has_keys);
  if (only == kSeveral) {
    merge(p, shared, work, turn, weights);
  } else {
    shared.weighed.arrive();  // a phase for every item that is cut
  }
  shared.merged.arrive();
  return only;
}

}  // namespace dsv4::sm90_fp8
