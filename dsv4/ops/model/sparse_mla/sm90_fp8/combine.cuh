// Split-KV: the CTAs of a cluster combine their partials of a query through
// distributed shared memory.
//
// Split c has m_c, the row sum s_c and the unnormalized O_c. The CTAs exchange m_c and s_c (and a
// divisor) during the last PV, so that a partial is scaled before it is sent, and combining is an
// addition, in split order. With f = output_scale():
//
//   out = f s sum_c (O_c 2^(m_c - m) / s)     m = max_c m_c,  s = sum_c s_c 2^(m_c - m)
//
// Scaled partials fit f16: each is at most a mean of V, or is divided by a common divisor. Rounding
// each to f16 costs 2^-11 relative, or 2^-25 absolute below 2^-14.
//
// Partials are exchanged in the layout of the registers. Fragment u = kDimTiles (head / 8) + t of a
// thread is four f16 values, two dims each of two heads. CTA b of the cluster combines the
// fragments_per_cta fragments from fragments_per_cta * b on.
//
// With Plan::invariant, the CTA of a split that alone has keys stores the query from f32 registers,
// as if it had not been split: invalid indices after its last key change no bit.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/sm90/epilogue.cuh"
#include "dsv4/device/sm90/online_softmax.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/operands.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/work.cuh"
#include "dsv4/ops/parts/rope/rotation.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

using sm90::finite_max;
using sm90::kLn2;
using sm90::kLog2E;

__device__ inline float sink_of(const Params& p, const WorkTile& work, int head) {
  return p.sink == nullptr ? -INFINITY : p.sink[work.first_head + head];
}

// Stores lse = ln(row_sum) + m and max_logits of one head; row_max and seen_max in log2.
__device__ inline void store_lse(const Params& p, const WorkTile& work, int head, float row_max,
                                 float row_sum, float seen_max) {
  const bool any = row_sum > 0.f || row_sum != row_sum;
  if (p.lse != nullptr)
    p.lse[offset_of(p.lse_at, work, head)] = any ? (row_max + log2f(row_sum)) * kLn2 : INFINITY;
  if (p.max_logits != nullptr)
    p.max_logits[offset_of(p.max_at, work, head)] = any ? seen_max * kLn2 : -INFINITY;
}

// The factor for O of one head: 1 / (row_sum + 2^(sink log2(e) - m)), or for unnormalized output
// 2^(m - seen_max), which makes it relative to max_logits. seen_max is used only for the latter.
__device__ inline float output_scale(const Params& p, float row_max, float row_sum, float seen_max,
                                     float sink) {
  const bool any = row_sum > 0.f || row_sum != row_sum;
  if (!any) return 0.f;
  if (!p.normalized) return ptx::ex2_approx_ftz(row_max - seen_max);
  return __fdividef(1.f, row_sum + ptx::ex2_approx_ftz(sink * kLog2E - row_max));
}

// Row sum of a head over the keys of this CTA.
template <int kHeads>
__device__ float row_sum_of(const TileState<kHeads>& tile, int head) {
  float sum = 0.f;
  for (int w = 0; w < 8; ++w) sum += tile.row_sum[w][head];
  return sum;
}

// --- statistics ---

constexpr int kStatsBytes = 12;  // per head, from every CTA to every CTA
template <class KvFormat, int kHeads>
__device__ void publish_split_stats(const Params& p, Smem<KvFormat, kHeads>& smem, int head,
                                    float row_max, float row_sum, float divisor) {
  const int split = split_of_cta(p);
  const uint2 stats{__float_as_uint(row_sum != 0.f ? row_max : -INFINITY),
                    __float_as_uint(row_sum)};
  ptx::Mbarrier& full = smem.stats_full;
  for (int cta = 0; cta < p.cluster_size; ++cta) {
    ptx::st_async(&smem.split_stats[split][head], cta, stats, full);
    ptx::st_async(&smem.split_divisors[split][head], cta, __float_as_uint(divisor), full);
  }
}

// The softmax over all splits of a query. The producer warpgroup runs it, one thread per head.
template <class KvFormat, int kHeads>
struct SplitScales {
  const Params& p;
  Smem<KvFormat, kHeads>& smem;
  int head;  // index of the thread; those without a head only synchronize

  __device__ void run() const {
    const TileState<kHeads>& tile = smem.tiles[0];
    const WorkTile& work = tile.work;
    const bool exists = head < kHeads && work.first_head + head < p.heads;
    const float sink = exists ? sink_of(p, work, head) : -INFINITY;
    if (head == 0) {
      smem.stats_full.expect_tx(static_cast<uint32_t>(work.num_splits * kHeads * kStatsBytes));
      smem.stats_full.arrive();
    }
    smem.row_sum_full.wait(0);
    const bool is_fallback = tile.overflow == work.index + 1;  // it publishes its own stats
    if (!is_fallback && split_of_cta(p) < work.num_splits && head < kHeads) {
      const float row_max = tile.row_max[row_max_at<kHeads>(head)];
      publish_split_stats(p, smem, head, row_max, row_sum_of(tile, head), 1.f);
    }
    smem.stats_full.wait_acquire_cluster(0);
    const int owner = p.invariant ? find_single_owner(work.num_splits) : kNoOwner;
    if (head == 0) smem.single_split_owner = owner;
    float row_max = 0.f, row_sum = 0.f;
    if (head < kHeads) set_scales(work, is_fallback, owner, sink, row_max, row_sum);
    smem.scales_ready.arrive();
    if (exists && split_of_cta(p) == 0) store_lse(p, work, head, row_max, row_sum, row_max);
  }

 private:
  // row_max, row_sum: over all splits. Where max_logits are requested, m of
  // every split is its largest logit (kTrackMax).
  __device__ void set_scales(const WorkTile& work, bool is_fallback, int owner, float sink,
                             float& row_max, float& row_sum) const {
    float maxima[kMaxSplits], sums[kMaxSplits], divisors[kMaxSplits];
    row_max = -INFINITY;
#pragma unroll
    for (int c = 0; c < kMaxSplits; ++c) {
      const uint2 stats = smem.split_stats[c][head];
      const float divisor = __uint_as_float(smem.split_divisors[c][head]);
      const bool exists = c < work.num_splits;
      maxima[c] = exists ? __uint_as_float(stats.x) : -INFINITY;
      sums[c] = exists ? __uint_as_float(stats.y) : 0.f;
      divisors[c] = exists ? divisor : 1.f;
      row_max = fmaxf(row_max, maxima[c]);
    }
    const float base = finite_max(row_max);
    const int mine = split_of_cta(p);
    float my_weight = 0.f, large = 0.f;
#pragma unroll
    for (int c = 0; c < kMaxSplits; ++c) {
      const float weight = ptx::ex2_approx_ftz(maxima[c] - base);
      my_weight = c == mine ? weight : my_weight;
      row_sum = fmaf(sums[c], weight, row_sum);
      if (divisors[c] > 1.f) large = fmaxf(large, divisors[c] * weight * sums[c]);
    }
    // The common divisor with which the scaled partials of all splits fit f16.
    const float divisor = fmaxf(1.f, __fdividef(large, row_sum));
    const float scale = output_scale(p, row_max, row_sum, row_max, sink);
    const float share = my_weight == 0.f ? 0.f : __fdividef(my_weight, row_sum);
    const float inverse = __fdividef(1.f, divisor);
    // The fallback multiplies by share, then by inverse: f32 may not hold their product.
    smem.out_scale[0][head] = owner == mine ? scale : is_fallback ? share : share * inverse;
    smem.out_scale[1][head] = owner == mine ? scale : is_fallback ? inverse : share * inverse;
    smem.combine_scale[head] = scale * row_sum * divisor;
  }

  // The only split with keys, 0 if no split has any, or kNoOwner.
  __device__ int find_single_owner(int num_splits) const {
    int owner = 0, count = 0;
    for (int c = 0; c < num_splits; ++c) {
      const bool has_keys = head < kHeads && __uint_as_float(smem.split_stats[c][head].y) != 0.f;
      if (ptx::barrier_red_or(kBarrierProducer, kWarpgroup, has_keys)) owner = c, ++count;
    }
    return count > 1 ? kNoOwner : owner;
  }
};

// --- partials ---

// Where the partial of `split` is in the CTA that combines it: fragment i of a thread at
// [i kConsumers + thread].
template <class KvFormat, int kHeads>
__device__ uint2* partial_of(const Params& p, Smem<KvFormat, kHeads>& smem, int split) {
  return reinterpret_cast<uint2*>(smem.q) + split * p.fragments_per_cta * kConsumers;
}

// The fragments that this CTA combines.
__device__ inline int first_fragment(const Params& p) {
  return split_of_cta(p) * p.fragments_per_cta;
}
template <int kHeads>
__device__ int num_own_fragments(const Params& p) {
  constexpr int kAll = num_fragments(kHeads);
  return max(0, min(p.fragments_per_cta, kAll - first_fragment(p)));
}

// Bytes of partials that st_async stores here; with keeps_own, this CTA's own partial is not sent.
template <int kHeads>
__device__ uint32_t partial_bytes(const Params& p, const WorkTile& work, bool keeps_own) {
  const int splits = work.num_splits - (keeps_own && split_of_cta(p) < work.num_splits ? 1 : 0);
  return static_cast<uint32_t>(splits * num_own_fragments<kHeads>(p) * kFragmentBytes);
}

// The values of a fragment: two dims of its first head, then of its second.
__device__ inline float4 unpack(uint2 fragment) {
  const float2 a = __half22float2(ptx::as_half2(fragment.x));
  const float2 b = __half22float2(ptx::as_half2(fragment.y));
  return {a.x, a.y, b.x, b.y};
}

// The dim of c.out[t][4 n] and [4 n + 1] of a lane (consumer.cuh). c.out[t][4 n + 2] and [4 n + 3]
// have the next dim, once pair_rope_dims() (epilogue.cuh) has run.
template <class KvFormat>
__device__ int first_dim(const Lane& at, int t) {
  const bool rope = KvFormat::kRopeIsValue && t == kDimTiles - 1 && at.wg == 1;
  const int pair = rope ? at.g + (at.g % 2 != 0 ? 7 : 0) : 2 * at.g;
  return 64 * (kDimTiles * at.wg + t) + 16 * at.warp + pair;
}

// The inverse RoPE of a lane's dims first_dim() and first_dim() + 1 in tile t, or null.
template <class KvFormat, int kHeads>
__device__ const float2* rotation_at(const Params& p, const Smem<KvFormat, kHeads>& smem,
                                     const Lane& at, int t) {
  if (!KvFormat::kRopeIsValue || p.freqs == nullptr || t != kDimTiles - 1 || at.wg == 0)
    return nullptr;
  return smem.rotation + (first_dim<KvFormat>(at, t) - KvFormat::kCodes) / 2;
}

// Stores two neighboring dims of the output. With a rotation they are rounded first, as if they had
// been stored, so that the result has the bits of two ops.
template <class T>
__device__ void store_dims(T* to, float low, float high, const float2* rotation) {
  if (rotation != nullptr) {
    const float2 rotated =
        rotate({to_float(from_float<T>(low)), to_float(from_float<T>(high))}, *rotation);
    low = rotated.x, high = rotated.y;
  }
  sm90::store_pair(to, low, high);
}

// Adds the partials of this CTA's fragments and stores the output. kSplits: an upper bound of
// work.num_splits, which is at least 2.
template <class T, int kSplits, class KvFormat, int kHeads>
__device__ void combine_partials(const Params& p, Smem<KvFormat, kHeads>& smem,
                                 const WorkTile& work) {
  const Lane at = this_lane();
  const uint2* from = partial_of(p, smem, 0) + thread_index();
  const int begin = first_fragment(p), end = begin + num_own_fragments<kHeads>(p);
  int head = begin / kDimTiles * 8 + 2 * at.j;
  T* row = static_cast<T*>(p.out) + offset_of(p.out_at, work, head);
  const int heads = p.heads - work.first_head;
  for (int fragment = begin; fragment < end; ++fragment, from += kConsumers) {
    const int t = fragment % kDimTiles;
    if (t == 0 && fragment > begin) head += 8, row += 8 * p.out_at.head;
    const float2 scale = *reinterpret_cast<const float2*>(smem.combine_scale + head);
    uint2 partials[kSplits];
#pragma unroll
    for (int c = 0; c < kSplits; ++c)
      partials[c] =
          c < 2 || c < work.num_splits ? from[c * p.fragments_per_cta * kConsumers] : uint2{};
    float4 sum = unpack(partials[0]);
#pragma unroll
    for (int c = 1; c < kSplits; ++c) {
      const float4 partial = unpack(partials[c]);
      sum.x += partial.x, sum.y += partial.y, sum.z += partial.z, sum.w += partial.w;
    }
    T* to = row + first_dim<KvFormat>(at, t);
    // fmaf with 0: the sign of a zero must not depend on the number of splits without keys.
    const float4 out{fmaf(sum.x, scale.x, 0.f), fmaf(sum.y, scale.x, 0.f),
                     fmaf(sum.z, scale.y, 0.f), fmaf(sum.w, scale.y, 0.f)};
    const float2* rotation = rotation_at(p, smem, at, t);
    if (head < heads) store_dims(to, out.x, out.y, rotation);
    if (head + 1 < heads) store_dims(to + p.out_at.head, out.z, out.w, rotation);
  }
}
template <class T, class KvFormat, int kHeads>
__device__ void combine_partials(const Params& p, Smem<KvFormat, kHeads>& smem,
                                 const WorkTile& work) {
  if (p.cluster_size <= 2) {
    combine_partials<T, 2>(p, smem, work);
  } else if (p.cluster_size <= 4) {
    combine_partials<T, 4>(p, smem, work);
  } else {
    combine_partials<T, kMaxSplits>(p, smem, work);
  }
}

// Finishes a query that has several splits; the consumers run it. If only one split has keys, its
// CTA calls store(), and that is all. Otherwise send() sends this CTA's partial to the CTAs that
// combine it (with keeps_own, without the fragments of this CTA), and this CTA combines its own.
template <class KvFormat, int kHeads, class Store, class Send>
__device__ void combine_splits(const Params& p, Smem<KvFormat, kHeads>& smem, const WorkTile& work,
                               bool keeps_own, const Store& store, const Send& send) {
  // The two waits also keep this CTA from exiting before the other CTAs' accesses to its memory.
  smem.partials_empty.wait(0);
  smem.scales_ready.wait(0);
  const int owner = smem.single_split_owner;
  if (owner != kNoOwner) {
    if (owner == split_of_cta(p)) store();
    return;
  }
  if (thread_index() == 0) {
    smem.partials_full.expect_tx(partial_bytes<kHeads>(p, work, keeps_own));
    smem.partials_full.arrive();
  }
  if (split_of_cta(p) < work.num_splits) send();
  smem.partials_full.wait_acquire_cluster(0);
  p.out_f32 ? combine_partials<float>(p, smem, work) : combine_partials<bf16>(p, smem, work);
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
