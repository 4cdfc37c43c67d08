// A work item in f32, without tensor cores: for rows or queries whose values do not fit f16 (scales
// above 2^7, values above 65280). Latents are normalised, so this is for correctness only.
//
// A warp has a head, a lane 16 of its value dims (and 2 of RoPE, where that is key only).

#pragma once

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/sparse_mla/sm90_fp8_store.cuh"

namespace dsv4::sm90_fp8 {

template <class Row>
struct ExactLane {
  static constexpr int kDims = 16, kKeyOnly = Row::kRopeIsValue ? 0 : Row::kRope / kWarp;
  int lane;

  // Dim i of this lane, and of those that are key only.
  __device__ int dim(int i) const {
    return i < kDims ? kDims * lane + i : kWidthV + kKeyOnly * lane + i - kDims;
  }

  __device__ void load(const RowPlace& row, float (&k)[kDims + kKeyOnly]) const {
    constexpr int64_t kRopeOffset = Row::kLayout.rope_offset(0);
    const auto* rope = reinterpret_cast<const bf16*>(row.entry + kRopeOffset);
    for (int i = 0; i < kDims + kKeyOnly; ++i) {
      const int d = dim(i);
      k[i] = d < Row::kCodes ? e4m3_to_f32(row.entry[d]) * scale(row, d / Row::kGroup)
                             : to_float(rope[d - Row::kCodes]);
    }
  }

 private:
  __device__ static float scale(const RowPlace& row, int group) {
    if constexpr (Row::kFloatScales) return reinterpret_cast<const float*>(row.scales)[group];
    return ue8m0_to_f32(row.scales[group]);
  }
};

// The same as the products of all tiles, store_output() or store_part(). `part`: where a part goes;
// negative: the whole query is here.
template <class Row, int kHeads>
__device__ __noinline__ void attend_exactly(const Params& p, int item, int64_t part) {
  using L = ExactLane<Row>;
  const Work work = find_work<kHeads>(p, item);
  const int thread = this_thread();
  const L at{thread % kWarp};
  for (int head = thread / kWarp; head < kHeads; head += kConsumers / kWarp) {
    if (work.first_head + head >= p.heads) return;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    float m = -INFINITY, sum = 0.f, out[L::kDims] = {};
    for (int position = work.begin; position < work.end; ++position) {
      const PagedList& rows = position < work.window ? p.window : p.compressed;
      const int id = listed_id(p, work, position);
      if (!is_row(rows, id)) continue;
      float k[L::kDims + L::kKeyOnly], dot = 0.f;
      at.load(find_row<Row>(rows, id), k);
      for (int i = 0; i < L::kDims + L::kKeyOnly; ++i)
        dot = fmaf(to_float(q[at.dim(i)]), k[i], dot);
      const float z = warp_sum(dot) * p.log2_scale, now = fmaxf(m, z);
      const float shrink = m == -INFINITY ? 0.f : exp2f(m - now);
      const float weight = z == -INFINITY ? 0.f : exp2f(z - now);
      m = now;
      sum = fmaf(sum, shrink, weight);
      for (int i = 0; i < L::kDims; ++i) out[i] = fmaf(out[i], shrink, weight * k[i]);
    }
    const float reference = m == -INFINITY ? 0.f : m;
    if (part >= 0) {
      if (at.lane == 0) p.summary[part * kHeads + head] = {reference, sum};
      float* to = p.partial + (part * kHeads + head) * kWidthV;
      for (int i = 0; i < L::kDims; ++i) to[at.dim(i)] = out[i];
      continue;
    }
    const float factor = finish_head(p, work, head, reference, sum, reference, at.lane == 0);
    auto* to = static_cast<bf16*>(p.out) + offset_of(p.out_at, work, head);
    for (int i = 0; i < L::kDims; ++i) to[at.dim(i)] = __float2bfloat16_rn(out[i] * factor);
  }
}

}  // namespace dsv4::sm90_fp8
