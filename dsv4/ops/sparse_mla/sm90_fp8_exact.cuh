// A work item in f32, without tensor cores: for rows or queries whose values do not fit f16 (scales
// above 2^7, values above 65280). Latents are normalised, so this is for correctness only.
//
// A warp has a head, a lane 16 of its value dims (and 2 of RoPE, where that is key only). The
// values of all parts are divided by the same if f16 cannot hold those of one.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/sparse_mla/sm90_fp8_merge.cuh"

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

// What means of these values have to be divided by, a power of two, to be f16.
template <class Row>
__device__ float divisor_of(float sum, const float (&out)[ExactLane<Row>::kDims]) {
  float largest = 0.f;
  for (const float x : out) largest = fmaxf(largest, fabsf(x));
  largest = warp_max(largest) / sum;
  return largest > 32768.f && largest < INFINITY ? exp2f(ceilf(log2f(largest / 32768.f))) : 1.f;
}

// As send_part(); a lane's pair of dims goes where first_dim() would have it.
template <class Row, int kHeads>
__device__ void send_exact_part(const Params& p, Shared<Row, kHeads>& shared, int head,
                                const float (&out)[ExactLane<Row>::kDims]) {
  const float share = shared.factor[0][head], divided = shared.factor[1][head];
  constexpr int kDims = ExactLane<Row>::kDims;
  const int lane = thread_index() % kWarp;
  const int wg = lane / 16, t = lane / 4 % kOutTiles, warp = lane % 4;
  const int unit = head / 8 * kOutTiles + t;
  const bool rope = Row::kRopeIsValue && lane >= kWarp - 4;
  uint2* to = part_values(p, shared, chunk_of_block(p)) + unit % p.part_units * kConsumers +
              wg * kGroupThreads + warp * kWarp + head % 8 / 2;
  for (int i = 0; i < kDims; i += 2) {
    const int g = !rope ? i / 2 : i < 8 ? i : i - 7;
    ptx::st_async(reinterpret_cast<uint32_t*>(to + 4 * g) + head % 2, unit / p.part_units,
                  pack_f16(out[i] * share * divided, out[i + 1] * share * divided),
                  shared.parts_full);
  }
}

template <class Row>
__device__ void store_exactly(const Params& p, const Work& work, int head, float factor,
                              const float (&out)[ExactLane<Row>::kDims]) {
  const int64_t to =
      offset_of(p.out_at, work, head) + ExactLane<Row>::kDims * (thread_index() % kWarp);
  for (int i = 0; i < ExactLane<Row>::kDims; i += 2) {
    const float low = out[i] * factor, high = out[i + 1] * factor;
    p.out_f32 ? store_pair(static_cast<float*>(p.out) + to + i, low, high)
              : store_pair(static_cast<bf16*>(p.out) + to + i, low, high);
  }
}

// What becomes of a head that has been computed.
enum class ExactEnd { kTell, kSend, kStore };

// The same as the products of all tiles, and for every head what stands behind them.
template <class Row, int kHeads>
__device__ __noinline__ void attend_exactly(const Params& p, Shared<Row, kHeads>& shared,
                                            const Work& work, ExactEnd end) {
  using L = ExactLane<Row>;
  const int thread = thread_index();
  const L at{thread % kWarp};
  for (int head = thread / kWarp; head < kHeads; head += kConsumers / kWarp) {
    const bool exists = work.first_head + head < p.heads;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    float m = -INFINITY, sum = 0.f, out[L::kDims] = {};
    for (int position = work.begin; exists && position < work.end; ++position) {
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
    if (end == ExactEnd::kSend) {
      send_exact_part(p, shared, head, out);
    } else if (end == ExactEnd::kTell) {
      const float divisor = divisor_of<Row>(sum, out);
      if (at.lane == 0) tell_summary(p, shared, head, reference, sum, divisor);
    } else if (exists) {
      // Of one that is cut they are stored where parts are weighed.
      if (at.lane == 0 && work.parts == 1)
        store_statistics(p, work, head, reference, sum, reference);
      const float factor = output_factor(p, reference, sum, reference, sink_of(p, work, head));
      store_exactly<Row>(p, work, head, factor, out);
    }
  }
}

// All of a query's end, from nothing that is in registers. One that is cut is computed twice: what
// the other blocks have to know before its values is known behind its last key.
template <class Row, int kHeads>
__device__ __noinline__ void finish_exactly(const Params& p, Shared<Row, kHeads>& shared,
                                            const Work& work) {
  const auto attend = [&](ExactEnd end) { attend_exactly(p, shared, work, end); };
  const auto store = [&] { attend(ExactEnd::kStore); };
  if (work.parts == 1) return store();
  attend(ExactEnd::kTell);
  share(p, shared, work, false, store, [&] { attend(ExactEnd::kSend); });
}

}  // namespace dsv4::sm90_fp8
