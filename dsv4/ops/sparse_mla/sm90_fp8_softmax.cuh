// Dots of a tile -> weights 2^(c S^T - m), f16 in shared memory, and their sums.
//
// m is no running maximum but a reference: the first tile sets it (or the first two together), and
// later it moves only when a logit exceeds it by kHeadroom, so that most tiles rescale nothing. A
// tile that moves it leaves the factor by which everything before it shrinks; tile 1 waits until
// tile 0 has decided that.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_consumer.cuh"

namespace dsv4::sm90_fp8 {

constexpr float kHeadroom = 8.f;  // weights up to 2^8, far below f16's 2^16

// values[i]: of heads 8 (i / 2) + 2j + i % 2, for this lane's keys -> this lane has the result over
// all keys of the warp of a few heads: for_each_head calls visit(head, value) for them. Lanes halve
// what they keep at every exchange.
template <int kBit = 4, int kKept = 0, int kCount, class Combine>
__device__ void reduce_over_keys(float (&values)[kCount], const Combine& combine) {
  constexpr int kBefore = kKept == 0 ? kCount : kKept, kAfter = kBefore > 2 ? kBefore / 2 : kBefore;
  const bool upper = (this_lane().g & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kAfter; ++i) {
    // Of two halves the lane gives one away; the last two values it only adds to.
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

// This warp's sums of the item are complete.
template <class Row, int kHeads>
__device__ void publish_sums(const Consumer<Row, kHeads>& c) {
  const Lane at = this_lane();
  float* mine = c.item().sums[4 * at.wg + at.warp];
  for_each_head<kHeads>(c.sums, [&](int head, float sum) { mine[head] = sum; });
  c.shared.sums_full.arrive();
}

// The other warpgroup's tile has moved the reference or not; if so the sums shrink with it.
template <class Row, int kHeads>
__device__ void follow(Consumer<Row, kHeads>& c, int tile) {
  const Lane at = this_lane();
  c.shared.decided[tile].wait(c.phase(tile));
  const Move move = c.shared.moved[tile];
  if (move == Move::kNone) return;
  c.state |= kReferenced;
  if (move == Move::kFirst) return;
  for (int i = 0; i < 2; ++i) {
    c.sums[i] *=
        c.shared.shrink[tile][reference_place<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
  }
}

// Of this warpgroup's tile.
template <class Row, int kHeads>
__device__ void decide(Consumer<Row, kHeads>& c, Move move) {
  const Lane at = this_lane();
  if (at.warp == 0 && at.lane == 0) c.shared.moved[at.wg] = move;
  c.shared.decided[at.wg].arrive();
}

// Item::largest of this lane's heads after these logits of its keys.
template <class Row, int kHeads>
__device__ void raise_largest(Consumer<Row, kHeads>& c, const float (&z)[kHeads / 2],
                              const float (&m)[kHeads / 4]) {
  float top[kHeads / 4];
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i)
    top[i] = fmaxf(z[i / 2 * 4 + i % 2], z[i / 2 * 4 + i % 2 + 2]) + m[i];
  reduce_over_keys(top, [](float a, float b) { return fmaxf(a, b); });
  for_each_head<kHeads>(
      top, [&](int head, float x) { atomicMax(&c.item().largest[head], ordered_int(x)); });
}

// Item::largest becomes the reference; `before` it was m.
template <class Row, int kHeads>
__device__ void add_change(Consumer<Row, kHeads>& c, float (&s)[kHeads / 2],
                           const float (&m)[kHeads / 4]) {
  const Lane at = this_lane();
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) {
    const float change = m[i] - from_ordered_int(c.item().largest[i / 2 * 8 + 2 * at.j + i % 2]);
    s[i / 2 * 4 + i % 2] += change;
    s[i / 2 * 4 + i % 2 + 2] += change;
  }
}

// Item::largest of a head becomes its reference.
template <class Row, int kHeads>
__device__ void set_reference(Consumer<Row, kHeads>& c, int head) {
  const float now = from_ordered_int(c.item().largest[head]);
  // Adding m to s and taking it away again costs s bits; from 2^28 on more than kHeadroom.
  if (!(fabsf(now) < 0x1p24f)) c.give_up();
  c.item().reference[reference_place<kHeads>(head)] = now;
}

// The same for both tiles of a pair when no key was before them (up to 32 heads): the reference
// becomes the largest logit of both, if they have one.
template <class Row, int kHeads>
__device__ void find_reference(Consumer<Row, kHeads>& c, float (&s)[kHeads / 2]) {
  const float none[kHeads / 4] = {};
  for (float& z : s) z *= c.p.log2_scale;
  raise_largest(c, s, none);
  c.wait_for_room();
  bool has_key = false;
  for (const float z : s) has_key |= z != -INFINITY;
  const bool any = ptx::barrier_red_or(kBarrierBoth, kConsumers, has_key);
  if (any) {
    add_change(c, s, none);
    const int head = thread_index();
    if (head < kHeads) set_reference(c, head);
    c.state |= kReferenced;
  }
  decide(c, Move::kNone);
}

// The reference becomes the largest logit of all keys so far, and the exponents s and this
// warpgroup's sums follow.
template <class Row, int kHeads>
__device__ void move_reference(Consumer<Row, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  {
    float m[kHeads / 4];
    read_heads<kHeads>(c.item().reference, m);
    raise_largest(c, s, m);
    ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
    add_change(c, s, m);
  }
  const int head = at.warp * kWarp + at.lane;
  if (head < kHeads) {
    const int place = reference_place<kHeads>(head);
    const float before = c.item().reference[place];
    set_reference(c, head);
    c.shared.shrink[at.wg][place] =
        c.turn(kReferenced) ? exp2f(before - c.item().reference[place]) : 1.f;  // of 0
  }
  ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
  for (int i = 0; i < 2; ++i) {
    c.sums[i] *=
        c.shared.shrink[at.wg][reference_place<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
  }
  c.state |= kReferenced;
}

// Dots -> exponents relative to the reference.
template <bool kTrackMaximum, class Row, int kHeads>
__device__ void subtract_reference(Consumer<Row, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  float top[4];  // of every fourth dot: shorter chains
  {
    float m[kHeads / 4];
    read_heads<kHeads>(c.item().reference, m);
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) {
      s[i] = fmaf(s[i], c.p.log2_scale, -m[i / 4 * 2 + i % 2]);
      top[i % 4] = i < 4 ? s[i] : fmaxf(top[i % 4], s[i]);
    }
  }
  const float largest = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
  c.wait_for_room();
  const bool exceeds = largest > (c.turn(kReferenced) && !kTrackMaximum ? kHeadroom : -INFINITY);
  const bool moves = ptx::barrier_red_or(kBarrierOne + at.wg, kGroupThreads, exceeds);
  const Move move = !moves ? Move::kNone : c.turn(kReferenced) ? Move::kLater : Move::kFirst;
  if (moves) move_reference(c, s);
  decide(c, move);
}

// Head tiles n and n + 1 (there may be only one), keys g and g + 8 -> [heads, 64 keys] at `to`.
template <int kHeads>
__device__ void store_weights(uint32_t to, const float (&s)[kHeads / 2], int n) {
  uint32_t r[4];
  for (int i = 0; i < (kHeads == 8 ? 2 : 4); ++i) {
    r[i] = pack_f16(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]);
  }
  if constexpr (kHeads == 8) {
    ptx::stmatrix_x2_trans(to, r[0], r[1]);
  } else {
    ptx::stmatrix_x4_trans(to, r);
  }
}

// Exponents -> weights in shared memory.
template <class Row, int kHeads>
__device__ void weigh(Consumer<Row, kHeads>& c, float (&s)[kHeads / 2]) {
  const Lane at = this_lane();
  const int key_piece = 2 * at.warp + at.lane / 8 % 2, head = at.lane % 8;
  const uint32_t to = ptx::smem_address(c.shared.weights[at.wg]) + at.lane / 16 * 1024 +
                      head * 128 + 16 * (key_piece ^ head);
#pragma unroll
  for (int n = 0; n < kHeads / 8; n += 2) {
    for (int i = 4 * n; i < 4 * n + 8 && i < kHeads / 2; ++i) s[i] = ptx::ex2_approx_ftz(s[i]);
    store_weights<kHeads>(to + n * 1024, s, n);
  }
  // For the products with these weights; and for the bulk copies that will overwrite the zeros that
  // ordinary stores have left in the ring.
  ptx::fence_proxy_async();
  c.shared.weights_full[at.wg].arrive();
  float both[kHeads / 4];  // of keys g and g + 8
#pragma unroll
  for (int i = 0; i < kHeads / 4; ++i) both[i] = s[i / 2 * 4 + i % 2] + s[i / 2 * 4 + i % 2 + 2];
  reduce_over_keys(both, [](float a, float b) { return a + b; });
  for (int i = 0; i < 2; ++i) c.sums[i] += both[i];
}

}  // namespace dsv4::sm90_fp8
