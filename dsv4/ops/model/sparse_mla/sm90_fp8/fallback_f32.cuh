// The fp32 fallback: computes a work tile in f32 without tensor cores, where f16 does not suffice
// (scales above 2^7, values above 65280, logits from 2^24 on). Latents are normalized, so this
// exists for correctness only.
//
// A warp computes one head at a time; a lane has 16 value dims (and 2 of RoPE where that is key
// only). If f16 cannot hold a split's scaled partial, all splits are divided by the same number.

#pragma once

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/combine.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

template <class KvFormat>
struct FallbackLane {
  static constexpr int kDims = 16, kKeyOnly = KvFormat::kRopeIsValue ? 0 : KvFormat::kRope / kWarp;
  int lane;

  // Dim i of this lane; those from i = kDims on are key only.
  __device__ int dim(int i) const {
    return i < kDims ? kDims * lane + i : kDimV + kKeyOnly * lane + i - kDims;
  }

  __device__ void load(const EntryPointers& at, float (&k)[kDims + kKeyOnly]) const {
    constexpr int64_t kRopeOffset = KvFormat::kLayout.rope_offset(0);
    const auto* rope = reinterpret_cast<const bf16*>(at.entry + kRopeOffset);
    for (int i = 0; i < kDims + kKeyOnly; ++i) {
      const int d = dim(i);
      k[i] = d < KvFormat::kCodes ? e4m3_to_f32(at.entry[d]) * scale(at, d / KvFormat::kGroup)
                                  : to_float(rope[d - KvFormat::kCodes]);
    }
  }

 private:
  __device__ static float scale(const EntryPointers& at, int group) {
    if constexpr (KvFormat::kFloatScales) return reinterpret_cast<const float*>(at.scales)[group];
    return ue8m0_to_f32(at.scales[group]);
  }
};

// The power of two by which out / row_sum is divided to fit f16.
template <class KvFormat>
__device__ float divisor_of(float row_sum, const float (&out)[FallbackLane<KvFormat>::kDims]) {
  float largest = 0.f;
  for (const float x : out) largest = fmaxf(largest, fabsf(x));
  largest = warp_max(largest) / row_sum;
  return largest > 32768.f && largest < INFINITY ? exp2f(ceilf(log2f(largest / 32768.f))) : 1.f;
}

// Like store_partial() (epilogue.cuh): each pair of dims goes where first_dim() expects it.
template <class KvFormat, int kHeads>
__device__ void store_partial_f32(const Params& p, Smem<KvFormat, kHeads>& smem, int head,
                                  const float (&out)[FallbackLane<KvFormat>::kDims]) {
  const float share = smem.out_scale[0][head], inverse = smem.out_scale[1][head];
  constexpr int kDims = FallbackLane<KvFormat>::kDims;
  const int lane = thread_index() % kWarp;
  const int wg = lane / 16, t = lane / 4 % kDimTiles, warp = lane % 4;
  const int fragment = head / 8 * kDimTiles + t;
  const bool rope = KvFormat::kRopeIsValue && lane >= kWarp - 4;
  uint2* to = partial_of(p, smem, split_of_cta(p)) + fragment % p.fragments_per_cta * kConsumers +
              wg * kWarpgroup + warp * kWarp + head % 8 / 2;
  for (int i = 0; i < kDims; i += 2) {
    const int g = !rope ? i / 2 : i < 8 ? i : i - 7;
    ptx::st_async(reinterpret_cast<uint32_t*>(to + 4 * g) + head % 2,
                  fragment / p.fragments_per_cta,
                  ptx::pack_f16x2(out[i] * share * inverse, out[i + 1] * share * inverse),
                  smem.partials_full);
  }
}

template <class KvFormat>
__device__ void store_output_f32(const Params& p, const WorkTile& work, int head, float scale,
                                 const float (&out)[FallbackLane<KvFormat>::kDims]) {
  const int64_t to =
      offset_of(p.out_at, work, head) + FallbackLane<KvFormat>::kDims * (thread_index() % kWarp);
  const int first_pair =
      (FallbackLane<KvFormat>::kDims * (thread_index() % kWarp) - KvFormat::kCodes) / 2;
  const bool rotates = KvFormat::kRopeIsValue && p.freqs != nullptr && first_pair >= 0;
  const int query = work.request * static_cast<int>(p.s_q.divisor) + work.query;
  for (int i = 0; i < FallbackLane<KvFormat>::kDims; i += 2) {
    const float low = out[i] * scale, high = out[i + 1] * scale;
    float2 rotation;
    if (rotates) {
      const auto position = static_cast<float>(p.positions[query]);
      rotation = rotation_of(position, p.freqs[first_pair + i / 2], true);
    }
    const float2* by = rotates ? &rotation : nullptr;
    p.out_f32 ? store_dims(static_cast<float*>(p.out) + to + i, low, high, by)
              : store_dims(static_cast<bf16*>(p.out) + to + i, low, high, by);
  }
}

// What attend_f32() does with a head once it is computed.
enum class FallbackEnd { kPublishStats, kStorePartial, kStoreOutput };

// Computes all keys of the work tile for every head, each followed by what `end` says.
template <class KvFormat, int kHeads>
__device__ __noinline__ void attend_f32(const Params& p, Smem<KvFormat, kHeads>& smem,
                                        const WorkTile& work, FallbackEnd end) {
  using L = FallbackLane<KvFormat>;
  const int thread = thread_index();
  const L at{thread % kWarp};
  for (int head = thread / kWarp; head < kHeads; head += kConsumers / kWarp) {
    const bool exists = work.first_head + head < p.heads;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    float m = -INFINITY, row_sum = 0.f, out[L::kDims] = {};
    for (int position = work.begin; exists && position < work.end; ++position) {
      const PagedList& list = position < work.window ? p.window : p.compressed;
      const int index = index_at(p, work, position);
      if (!is_valid(list, index)) continue;
      float k[L::kDims + L::kKeyOnly], s = 0.f;
      at.load(find_entry<KvFormat>(list, index), k);
      for (int i = 0; i < L::kDims + L::kKeyOnly; ++i) s = fmaf(to_float(q[at.dim(i)]), k[i], s);
      const float z = warp_sum(s) * p.log2_scale, now = fmaxf(m, z);
      const float rescale = m == -INFINITY ? 0.f : exp2f(m - now);
      const float probability = z == -INFINITY ? 0.f : exp2f(z - now);
      m = now;
      row_sum = fmaf(row_sum, rescale, probability);
      for (int i = 0; i < L::kDims; ++i) out[i] = fmaf(out[i], rescale, probability * k[i]);
    }
    const float row_max = finite_max(m);
    if (end == FallbackEnd::kStorePartial) {
      store_partial_f32(p, smem, head, out);
    } else if (end == FallbackEnd::kPublishStats) {
      const float divisor = divisor_of<KvFormat>(row_sum, out);
      if (at.lane == 0) publish_split_stats(p, smem, head, row_max, row_sum, divisor);
    } else if (exists) {
      // With several splits SplitScales stores lse.
      if (at.lane == 0 && work.num_splits == 1) store_lse(p, work, head, row_max, row_sum, row_max);
      const float scale = output_scale(p, row_max, row_sum, row_max, sink_of(p, work, head));
      store_output_f32<KvFormat>(p, work, head, scale, out);
    }
  }
}

// Computes the whole work tile again from memory. With several splits it does so twice: the other
// CTAs need the statistics, known after the last key, before the partial.
template <class KvFormat, int kHeads>
__device__ __noinline__ void finish_tile_f32(const Params& p, Smem<KvFormat, kHeads>& smem,
                                             const WorkTile& work) {
  const auto attend = [&](FallbackEnd end) { attend_f32(p, smem, work, end); };
  const auto store = [&] { attend(FallbackEnd::kStoreOutput); };
  if (work.num_splits == 1) return store();
  attend(FallbackEnd::kPublishStats);
  combine_splits(p, smem, work, false, store, [&] { attend(FallbackEnd::kStorePartial); });
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
