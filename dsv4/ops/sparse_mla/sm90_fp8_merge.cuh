// Queries whose list is cut among the blocks of a cluster: every block merges some of the values,
// over the parts in order, and the others bring it theirs, weighed (sm90_fp8_sums.cuh).
//
// If asked for (Plan::invariant), a query that has keys in one part only leaves from there, in f32
// as if it had not been cut: what stands in lists behind its last key changes no bit.
//
// Values travel as f16, as exact as the weights they are made of. They lie as in registers: the
// four of a thread in unit u = kOutTiles (head / 8) + t, two dims each of two heads, are 8 bytes.
// Block b of the cluster merges units part_units * b ..

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_store.cuh"

namespace dsv4::sm90_fp8 {

// Where a block has a part of the units that it merges: unit i of a thread at
// [i kConsumers + thread].
template <class Row, int kHeads>
__device__ uint2* part_values(const Params& p, Shared<Row, kHeads>& shared, int part) {
  return reinterpret_cast<uint2*>(shared.q) + part * p.part_units * kConsumers;
}

// What this block has of a query, to the blocks that merge it.
template <class Row, int kHeads>
__device__ void send_part(const Consumer<Row, kHeads>& c) {
  const Params& p = c.p;
  const Lane at = this_lane();
  const int mine = chunk_of_block(p);
  constexpr int kAtOnce = kUnitsAtOnce<kHeads>;
  uint2* const first = part_values(p, c.shared, mine) + thread_index();
  const float* factors = c.shared.factor[at.wg] + 2 * at.j;
  uint2* to = first;
  int block = 0;
#pragma unroll
  for (int u = 0; u < kUnits<kHeads>; u += kAtOnce) {
    if (to == first + p.part_units * kConsumers) to = first, ++block;
    const float2 f = *reinterpret_cast<const float2*>(factors + u / kOutTiles * 8);
    uint2 units[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float* v = c.out[(u + i) % kOutTiles] + u / kOutTiles * 4;
      units[i] = {pack_f16(v[0] * f.x, v[2] * f.x), pack_f16(v[1] * f.y, v[3] * f.y)};
    }
    if (block == mine) {  // nobody else looks at them
      for (int i = 0; i < kAtOnce; ++i) to[i * kConsumers] = units[i];
    } else {
      for (int i = 0; i < kAtOnce; ++i)
        ptx::st_async(to + i * kConsumers, block, units[i], c.shared.parts_full);
    }
    to += kAtOnce * kConsumers;
  }
}

// Units that this block merges.
__device__ inline int first_unit(const Params& p) {
  return chunk_of_block(p) * p.part_units;
}
template <int kHeads>
__device__ int num_units(const Params& p) {
  return max(0, min(p.part_units, kUnits<kHeads> - first_unit(p)));
}

// The values that this block is sent, by itself too unless it keeps what it merges.
template <int kHeads>
__device__ uint32_t bytes_of_parts(const Params& p, const Work& work, bool keeps_own) {
  const int parts = work.parts - (keeps_own && chunk_of_block(p) < work.parts ? 1 : 0);
  return static_cast<uint32_t>(parts * num_units<kHeads>(p) * kUnitBytes);
}

// The two dims of the first head, then of the second.
__device__ inline float4 unpack(uint2 unit) {
  const float2 a = __half22float2(as_half2(unit.x)), b = __half22float2(as_half2(unit.y));
  return {a.x, a.y, b.x, b.y};
}

// A warp has the units of its own registers' places. kParts: at least as many as there are, which
// are two or more.
template <class T, int kParts, class Row, int kHeads>
__device__ void add_parts(const Params& p, Shared<Row, kHeads>& shared, const Work& work) {
  const Lane at = this_lane();
  const uint2* from = part_values(p, shared, 0) + thread_index();
  const int begin = first_unit(p), end = begin + num_units<kHeads>(p);
  int head = begin / kOutTiles * 8 + 2 * at.j;
  T* row = static_cast<T*>(p.out) + offset_of(p.out_at, work, head);
  const int heads = p.heads - work.first_head;
  for (int unit = begin; unit < end; ++unit, from += kConsumers) {
    const int t = unit % kOutTiles;
    if (t == 0 && unit > begin) head += 8, row += 8 * p.out_at.head;
    const float2 last = *reinterpret_cast<const float2*>(shared.last_factor + head);
    uint2 parts[kParts];
#pragma unroll
    for (int c = 0; c < kParts; ++c)
      parts[c] = c < 2 || c < work.parts ? from[c * p.part_units * kConsumers] : uint2{};
    float4 sum = unpack(parts[0]);
#pragma unroll
    for (int c = 1; c < kParts; ++c) {
      const float4 part = unpack(parts[c]);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    T* to = row + first_dim<Row>(at, t);
    // Plus 0: how many parts without keys there are does not decide about -0.
    const float4 out{fmaf(sum.x, last.x, 0.f), fmaf(sum.y, last.x, 0.f), fmaf(sum.z, last.y, 0.f),
                     fmaf(sum.w, last.y, 0.f)};
    if (head < heads) store_pair(to, out.x, out.y);
    if (head + 1 < heads) store_pair(to + p.out_at.head, out.z, out.w);
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

// The end of a query that is cut, when its parts are weighed. If one block holds it, that block's
// store() is all; otherwise send() gives this block's part away, all of it or, if it keeps_own, but
// the units that it merges, and some of the values are merged here.
template <class Row, int kHeads, class Store, class Send>
__device__ void share(const Params& p, Shared<Row, kHeads>& shared, const Work& work,
                      bool keeps_own, const Store& store, const Send& send) {
  // Also so that no block ends before others have told it.
  shared.room.wait(0);
  shared.weighed.wait(0);
  const int holder = shared.holder;
  if (holder != kSeveral) {
    if (holder == chunk_of_block(p)) store();
    return;
  }
  if (thread_index() == 0) {
    shared.parts_full.expect_tx(bytes_of_parts<kHeads>(p, work, keeps_own));
    shared.parts_full.arrive();
  }
  if (chunk_of_block(p) < work.parts) send();
  shared.parts_full.wait_acquire_cluster(0);
  p.out_f32 ? add_parts<float>(p, shared, work) : add_parts<bf16>(p, shared, work);
}

}  // namespace dsv4::sm90_fp8
