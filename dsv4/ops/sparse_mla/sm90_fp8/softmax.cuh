// Online softmax: S of a key tile -> P = 2^(c S^T - m), f16 in shared memory, and its row sums.
//
// m is not the exact running max: the first key tile sets it (or the first two jointly), and later
// it is updated only when a logit exceeds it by kHeadroom, so most tiles rescale nothing. A tile
// that updates it publishes the factor by which everything before it is rescaled; tile 1 of a pair
// waits for the decision of tile 0.

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8/consumer.cuh"

namespace dsv4::mla::sm90_fp8 {

constexpr float kHeadroom = 8.f;  // P up to 2^8, far below f16's 2^16

// Reduction over the keys of a warp. values[i]: of heads 8 (i / 2) + 2j + i % 2, for this lane's
// keys. Afterwards this lane has the result of two heads, which for_each_head visits. At every
// exchange a lane keeps half of its heads.
template <int kBit = 4, int kKept = 0, int kCount, class Combine>
__device__ void reduce_over_keys(float (&values)[kCount], const Combine& combine) {
  constexpr int kBefore = kKept == 0 ? kCount : kKept, kAfter = kBefore > 2 ? kBefore / 2 : kBefore;
  const bool upper = (this_lane().g & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kAfter; ++i) {
    // The lane gives one half away; the last two values it only adds to.
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

// This warp's row sums of the work tile are final.
template <class KvFormat, int kHeads>
__device__ void publish_row_sum(const Consumer<KvFormat, kHeads>& c) {
  const Lane at = this_lane();
  float* mine = c.tile().row_sum[4 * at.wg + at.warp];
  for_each_head<kHeads>(c.row_sum, [&](int head, float sum) { mine[head] = sum; });
  c.smem.row_sum_full.arrive();
}

// Rescales this thread's row sums by what key tile 0 or 1 published.
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

// Publishes what this warpgroup's key tile did to the row max.
template <class KvFormat, int kHeads>
__device__ void publish_max_update(Consumer<KvFormat, kHeads>& c, MaxUpdate update) {
  const Lane at = this_lane();
  if (at.warp == 0 && at.lane == 0) c.smem.max_update[at.wg] = update;
  c.smem.max_ready[at.wg].arrive();
}

// Includes logits z + m of this lane's keys in TileState::seen_max.
template <class KvFormat, int kHeads>
__device__ void raise_seen_max(Consumer<KvFormat, kHeads>& c, const float (&z)[kHeads / 2],
                               const float (&m)[kHeads / 4]) {
  float top[kHeads / 4];
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i)
    top[i] = fmaxf(z[i / 2 * 4 + i % 2], z[i / 2 * 4 + i % 2 + 2]) + m[i];
  reduce_over_keys(top, [](float a, float b) { return fmaxf(a, b); });
  for_each_head<kHeads>(
      top, [&](int head, float x) { atomicMax(&c.tile().seen_max[head], ordered_int(x)); });
}

// Exponents s relative to m -> relative to TileState::seen_max, the next row max.
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
  // Adding m to s and subtracting it again loses bits of s; from 2^28 on more than kHeadroom.
  if (!(fabsf(now) < 0x1p24f)) c.request_fp32_fallback();
  c.tile().row_max[row_max_at<kHeads>(head)] = now;
}

// S -> exponents for both key tiles of a pair jointly, when no key came before (up to 32 heads):
// the row max becomes the largest logit of both tiles, if they have a valid key.
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

// The row max becomes the largest logit so far; the exponents s and this
// warpgroup's row sums follow.
template <class KvFormat, int kHeads>
__device__ void update_row_max(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  {
    float m[kHeads / 4];
    read_heads<kHeads>(c.tile().row_max, m);
    raise_seen_max(c, s, m);
    ptx::barrier_sync(kBarrierWarpgroup + at.wg, kWarpgroup);
    subtract_seen_max(c, s, m);
  }
  const int head = at.warp * kWarp + at.lane;
  if (head < kHeads) {
    const int place = row_max_at<kHeads>(head);
    const float before = c.tile().row_max[place];
    set_row_max(c, head);
    c.smem.rescale[at.wg][place] =
        c.bit(kHasMax) ? exp2f(before - c.tile().row_max[place]) : 1.f;  // applies to 0
  }
  ptx::barrier_sync(kBarrierWarpgroup + at.wg, kWarpgroup);
  rescale_row_sum(c, at, at.wg);
  c.state |= kHasMax;
}

// S -> exponents relative to the row max, which is updated if a logit exceeds its headroom.
template <bool kTrackMax, class KvFormat, int kHeads>
__device__ void subtract_row_max(Consumer<KvFormat, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  float top[4];  // of every fourth value: shorter dependency chains
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
  const bool exceeds = largest > (c.bit(kHasMax) && !kTrackMax ? kHeadroom : -INFINITY);
  const bool updates = ptx::barrier_red_or(kBarrierWarpgroup + at.wg, kWarpgroup, exceeds);
  const MaxUpdate update = !updates         ? MaxUpdate::kNone
                           : c.bit(kHasMax) ? MaxUpdate::kRescale
                                            : MaxUpdate::kFirst;
  if (updates) update_row_max(c, s);
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

// Exponents -> P in shared memory, and its row sums (unrounded).
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
  // Before the PV products that read P, and before the bulk copies that will overwrite the zeros of
  // invalid keys, which the producer stored with ordinary stores.
  ptx::fence_proxy_async();
  c.smem.p_full[at.wg].arrive();
  float both[kHeads / 4];  // of keys g and g + 8
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) both[i] = s[i / 2 * 4 + i % 2] + s[i / 2 * 4 + i % 2 + 2];
  reduce_over_keys(both, [](float a, float b) { return a + b; });
  for (int i = 0; i < 2; ++i) c.row_sum[i] += both[i];
}

}  // namespace dsv4::mla::sm90_fp8
