// Online softmax: S of a key tile -> P = 2^(c S^T - m), f16 in shared memory, and its row sums.
// c = scale log2(e); logits z = c S and m are in log2.
// m is not the exact running max: the first key tile sets it (or the first two jointly), and later
// it is updated only when a logit exceeds it by kHeadroom (or always, kTrackMax), so most tiles
// rescale nothing. Then the m of heads with such a logit is updated: the bits of a head do not
// depend on the others of its CTA. A tile that updates m publishes the factor by which all earlier
// sums are rescaled; tile 1 of a pair waits for the decision of tile 0.

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/consumer.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

constexpr float kHeadroom = 8.f;  // P up to 2^8, far below f16's 2^16

// Reduces over the keys of a warp. values[i]: of head 8 (i / 2) + 2j + i % 2, for this lane's keys.
// Afterwards this lane has the results of two heads, which for_each_head() visits. At every
// exchange a lane keeps half of its heads, until two are left.
template <int kBit = 4, int kKept = 0, int kCount, class Combine>
__device__ void reduce_over_keys(float (&values)[kCount], const Combine& combine) {
  constexpr int kBefore = kKept == 0 ? kCount : kKept, kAfter = kBefore > 2 ? kBefore / 2 : kBefore;
  const bool upper = (this_lane().g & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kAfter; ++i) {
    // A lane sends one half of its values and keeps the other; the last two it sends and keeps.
    const float keep = kBefore > 2 && upper ? values[kBefore - kAfter + i] : values[i];
    const float give = kBefore > 2 && !upper ? values[kBefore - kAfter + i] : values[i];
    values[i] = combine(keep, __shfl_xor_sync(~0u, give, 4 * kBit));
  }
  if constexpr (kBit > 1) reduce_over_keys<kBit / 2, kAfter>(values, combine);
}
template <int kHeads, class Visit>
__device__ void for_each_head(const float* values, const Visit& visit) {
  constexpr int kSharing = 64 / kHeads;  // lanes with the same result
  const auto [lane, wg, warp, g, j] = this_lane();
  if (g % kSharing != 0) return;
  for (int i = 0; i < 2; ++i) visit(8 * (g / kSharing) + 2 * j + i, values[i]);
}

// Publishes this warp's row sums once the work tile changes them no more.
template <class KvFormat, int kHeads>
__device__ void publish_row_sum(const Consumer<KvFormat, kHeads>& c) {
  const Lane at = this_lane();
  float* mine = c.tile().row_sum[4 * at.wg + at.warp];
  for_each_head<kHeads>(c.row_sum, [&](int head, float sum) { mine[head] = sum; });
  c.smem.row_sum_full.arrive();
}

// Rescales this thread's row sums by the factors that key tile 0 or 1 published.
template <class KvFormat, int kHeads>
__device__ void rescale_row_sum(Consumer<KvFormat, kHeads>& c, const Lane& at, int key_tile) {
  for (int i = 0; i < 2; ++i) {
    c.row_sum[i] *=
        c.smem.rescale[key_tile][row_max_at<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
  }
}

// Waits for the other warpgroup's key tile and applies its update of the row max.
template <class KvFormat, int kHeads>
__device__ void apply_peer_update(Consumer<KvFormat, kHeads>& c, int key_tile) {
  const Lane at = this_lane();
  c.smem.max_ready[key_tile].wait(c.phase(key_tile));
  const MaxUpdate update = c.smem.max_update[key_tile];
  if (update == MaxUpdate::kNone) return;
  c.state |= kHasMax;
  if (update == MaxUpdate::kFirst) return;
  rescale_row_sum(c, at, key_tile);
}

// Publishes how this warpgroup's key tile changed the row max.
template <class KvFormat, int kHeads>
__device__ void publish_max_update(Consumer<KvFormat, kHeads>& c, MaxUpdate update) {
  const Lane at = this_lane();
  if (at.warp == 0 && at.lane == 0) c.smem.max_update[at.wg] = update;
  c.smem.max_ready[at.wg].arrive();
}

// Raises TileState::seen_max to the logits z + m of this lane's keys (z: relative to m), of heads
// with a logit that exceeds their row max by more than `least`.
template <class KvFormat, int kHeads>
__device__ void raise_seen_max(Consumer<KvFormat, kHeads>& c, const float (&z)[kHeads / 2],
                               const float (&m)[kHeads / 4], float least = -INFINITY) {
  float top[kHeads / 4];
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i)
    top[i] = fmaxf(z[i / 2 * 4 + i % 2], z[i / 2 * 4 + i % 2 + 2]) + m[i];
  reduce_over_keys(top, [](float a, float b) { return fmaxf(a, b); });
  for_each_head<kHeads>(top, [&](int head, float x) {
    if (least > 0 && !(x - c.tile().row_max[row_max_at<kHeads>(head)] > least)) return;
    atomicMax(&c.tile().seen_max[head], ordered_int(x));
  });
}

// Exponents s, relative to m, become relative to TileState::seen_max, which is the next row max.
template <class KvFormat, int kHeads>
__device__ void subtract_seen_max(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2],
                                  const float (&m)[kHeads / 4]) {
  const Lane at = this_lane();
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const float change = m[i] - from_ordered_int(c.tile().seen_max[i / 2 * 8 + 2 * at.j + i % 2]);
    s[i / 2 * 4 + i % 2] += change;
    s[i / 2 * 4 + i % 2 + 2] += change;
  }
}

// TileState::seen_max of a head becomes its row max.
template <class KvFormat, int kHeads>
__device__ void set_row_max(Consumer<KvFormat, kHeads>& c, int head) {
  const float now = from_ordered_int(c.tile().seen_max[head]);
  // Adding and subtracting m changes s by half an ulp of m: 1 at 2^24, above 8 from 2^28 on.
  if (!(fabsf(now) < 0x1p24f)) c.request_fp32_fallback();
  c.tile().row_max[row_max_at<kHeads>(head)] = now;
}

// S -> exponents for both key tiles of a pair jointly, if the work tile has no row max yet (up to
// 32 heads): it becomes the largest logit of both tiles, if they have a valid key.
template <class KvFormat, int kHeads>
__device__ void set_first_max_jointly(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2]) {
  const float none[kHeads / 4] = {};
  for (float& z : s) z *= c.p.log2_scale;
  raise_seen_max(c, s, none);
  c.wait_p_empty();
  bool has_key = false;
  for (const float z : s) has_key |= z != -INFINITY;
  const bool any = ptx::barrier_red_or(kBarrierConsumers, kConsumers, has_key);
  if (any) {
    subtract_seen_max(c, s, none);
    const int head = thread_index();
    if (head < kHeads) set_row_max(c, head);
    c.state |= kHasMax;
  }
  publish_max_update(c, MaxUpdate::kNone);
}

// The row max of heads with a logit above it by more than `least` becomes the largest logit so far.
// Exponents s and this warpgroup's row sums are rescaled to it.
template <class KvFormat, int kHeads>
__device__ void update_row_max(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2], float least) {
  const Lane at = this_lane();
  {
    float m[kHeads / 4];
    read_heads<kHeads>(c.tile().row_max, m);
    raise_seen_max(c, s, m, least);
    ptx::barrier_sync(kBarrierWarpgroup + at.wg, kWarpgroup);
    subtract_seen_max(c, s, m);
  }
  const int head = at.warp * kWarp + at.lane;
  if (head < kHeads) {
    const int place = row_max_at<kHeads>(head);
    const float before = c.tile().row_max[place];
    set_row_max(c, head);
    c.smem.rescale[at.wg][place] =
        c.bit(kHasMax) ? exp2f(before - c.tile().row_max[place]) : 1.f;  // the sums are still 0
  }
  ptx::barrier_sync(kBarrierWarpgroup + at.wg, kWarpgroup);
  rescale_row_sum(c, at, at.wg);
  c.state |= kHasMax;
}

// S -> exponents relative to m; updates m if a logit exceeds it by kHeadroom, or with kTrackMax.
template <bool kTrackMax, class KvFormat, int kHeads>
__device__ void subtract_row_max(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  float top[4];  // maxima of every fourth value: shorter dependency chains
  {
    float m[kHeads / 4];
    read_heads<kHeads>(c.tile().row_max, m);
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) {
      s[i] = fmaf(s[i], c.p.log2_scale, -m[i / 4 * 2 + i % 2]);
      top[i % 4] = i < 4 ? s[i] : fmaxf(top[i % 4], s[i]);
    }
  }
  const float largest = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
  c.wait_p_empty();
  const float least = c.bit(kHasMax) && !kTrackMax ? kHeadroom : -INFINITY;
  const bool exceeds = largest > least;
  const bool updates = ptx::barrier_red_or(kBarrierWarpgroup + at.wg, kWarpgroup, exceeds);
  const MaxUpdate update = !updates         ? MaxUpdate::kNone
                           : c.bit(kHasMax) ? MaxUpdate::kRescale
                                            : MaxUpdate::kFirst;
  if (updates) update_row_max(c, s, least);
  publish_max_update(c, update);
}

// P of head tiles n and n + 1 (with 8 heads only n), keys g and g + 8 -> [heads, 64 keys] at `to`.
template <int kHeads>
__device__ void store_head_tiles(uint32_t to, const float (&s)[kHeads / 2], int n) {
  uint32_t r[4];
  for (int i = 0; i < (kHeads == 8 ? 2 : 4); ++i) {
    r[i] = ptx::pack_f16x2(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]);
  }
  if constexpr (kHeads == 8) {
    ptx::stmatrix_x2_trans(to, r[0], r[1]);
  } else {
    ptx::stmatrix_x4_trans(to, r);
  }
}

// Exponents -> P in shared memory, and the row sums of P before it is rounded to f16.
template <class KvFormat, int kHeads>
__device__ void store_p(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  const int key_chunk = 2 * at.warp + at.lane / 8 % 2, head = at.lane % 8;
  const uint32_t to = ptx::smem_address(c.smem.p[at.wg]) + at.lane / 16 * 1024 + head * 128 +
                      16 * (key_chunk ^ head);
#pragma unroll
  for (int n = 0; n < kHeads / 8; n += 2) {
    for (int i = 4 * n; i < 4 * n + 8 && i < kHeads / 2; ++i) s[i] = ptx::ex2_approx_ftz(s[i]);
    store_head_tiles<kHeads>(to + n * 1024, s, n);
  }
  // Orders the stores of P before the PV products that read them, and the producer's zeros of
  // invalid keys, which this thread waited for, before the bulk copies that overwrite them.
  ptx::fence_proxy_async();
  c.smem.p_full[at.wg].arrive();
  float both[kHeads / 4];  // P of key g plus P of key g + 8
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) both[i] = s[i / 2 * 4 + i % 2] + s[i / 2 * 4 + i % 2 + 2];
  reduce_over_keys(both, [](float a, float b) { return a + b; });
  for (int i = 0; i < 2; ++i) c.row_sum[i] += both[i];
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
