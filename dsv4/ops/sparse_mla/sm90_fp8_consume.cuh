// The computing warpgroups. Tiles of 64 keys come in pairs (the last may be alone):
//
//   warpgroup w:  S^T = K Q^T of tile w         [64 keys, heads]      A = keys, from the ring
//                 P^T = 2^(c S^T - m)           f16, to shared memory
//                 O^T += V^T P^T of both tiles  [256 dims, heads]     A = values, from the ring
//
// m is no running maximum but a reference: both warpgroups find it in the first pair, and later it
// moves only when a logit exceeds it by kHeadroom, so that most tiles rescale nothing. A tile that
// moves it leaves the factor by which everything before it shrinks; tile 1 waits until tile 0 has
// decided that.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"

namespace dsv4::sm90_fp8 {

constexpr int kBarrierBoth = 1, kBarrierOne = 2;  // kBarrierOne + w: of warpgroup w
constexpr float kHeadroom = 8.f;                  // weights up to 2^8, far below f16's 2^16

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

// Where a consumer is, in one register: bits that a barrier's phase follows, one for each tile of a
// pair, the ring, items and exchanges; whether a key of the item has set the reference; and
// from kTileLeft on how many tiles the item still has.
enum State : uint32_t {
  kTurnOfTile = 1,
  kTurnOfRing = 4,
  kTurnOfItem = 8,
  kTurnOfExchange = 16,
  kReferenced = 32,
  kTileLeft = 64
};

template <class Row, int kHeads>
struct Consumer {
  using S = Shared<Row, kHeads>;
  static constexpr int kHeadTiles = kHeads / 8;
  // Steps whose operands are in registers, decoded or multiplied, and those that are on their way
  // there from shared memory. One more of either is a spill.
  static constexpr bool kTight = kHeads == 64 && Row::kRopeIsValue;
  static constexpr int kDepth = kTight ? 2 : 3, kAhead = kTight ? 2 : 1;

  const Params& p;
  S& shared;
  float out[kOutTiles][kHeads / 2];  // O^T; dims 256 wg + 64 t + 16 warp + ..
  float sums[2];                     // of the warp's weights; heads as of for_each_head
  uint32_t state = 0;                // State
  int first_slot = 0;                // of the pair

  __device__ Consumer(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void begin() {
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      for (int i = 0; i < kHeads / 2; ++i) out[t][i] = 0.f;
    }
    for (float& sum : sums) sum = 0.f;
    state = state % kReferenced + static_cast<uint32_t>(item().work.tiles()) * kTileLeft;
  }

  __device__ int turn(uint32_t flag) const {
    return (state & flag) != 0 ? 1 : 0;
  }

  __device__ Item<kHeads>& item() const {
    return shared.items[turn(kTurnOfItem)];
  }

  // This warp is done with q of the item.
  __device__ void release_queries() const {
    __syncwarp();
    if (this_thread() % kWarp == 0) shared.item_empty.arrive();
  }
  // This warp's sums of the item are complete.
  __device__ void publish_sums() const {
    const Lane at = this_lane();
    float* mine = item().sums[4 * at.wg + at.warp];
    for_each_head<kHeads>(sums, [&](int head, float sum) { mine[head] = sum; });
    __syncwarp();
    if (at.lane == 0) shared.sums_full.arrive();
  }

  // An item without tiles.
  __device__ void skip() const {
    release_queries();
    publish_sums();
  }
  // Everybody's sums and give_up()s of the item are there.
  __device__ void wait_for_sums() const {
    shared.sums_full.wait(turn(kTurnOfItem));
  }

  __device__ int tiles_left() const {
    return static_cast<int>(state / kTileLeft);
  }

  // The next pair of tiles, or the last tile.
  template <bool kTrackMaximum>
  __device__ void iterate() {
    const Lane at = this_lane();
    const int tiles = min(tiles_left(), 2);
    state -= static_cast<uint32_t>(tiles) * kTileLeft;
    const bool last = state < kTileLeft;  // of the item
    float s[kHeads / 2] = {};
    const bool has_tile = at.wg < tiles;
    if (has_tile) {
      wait_full(2 * at.wg), wait_full(2 * at.wg + 1);
      const int mine = slot(2 * at.wg + at.warp / 2);
      RowState rows[2];  // of this lane's keys
      multiply_keys(mine, s, rows);
      mask(rows, s);
    }
    if (last) release_queries();
    const bool together = tiles > 1 && !turn(kReferenced);
    if (at.wg == 1 && !together) follow(0);
    if (has_tile) {
      together ? find_reference(s) : subtract_reference<kTrackMaximum>(s);
      weigh(s);
    }
    // Tile 1 may still shrink the sums of tile 0.
    const bool follows = at.wg == 0 && tiles > 1 && !together;
    if (last && !follows) publish_sums();
    multiply_values<0>();
    if (tiles > 1) {
      if (follows) follow(1);
      if (last && follows) publish_sums();
      multiply_values<1>();
    }
    first_slot += 2 * tiles;
    if (first_slot >= S::kSlots) first_slot -= S::kSlots, state ^= kTurnOfRing;
    state ^= tiles > 1 ? 3 * kTurnOfTile : kTurnOfTile;
  }

 private:
  // Of the barriers of tile 0 or 1 of the pair.
  __device__ int phase(int tile) const {
    return turn(kTurnOfTile << tile);
  }

  // Slot i of the pair, from 0 to 3, in the ring.
  __device__ int slot(int i) const {
    const int slot = first_slot + i;
    return slot < S::kSlots ? slot : slot - S::kSlots;
  }
  __device__ void wait_full(int i) {
    const bool wraps = first_slot + i >= S::kSlots;
    shared.full[slot(i)].wait(turn(kTurnOfRing) ^ (wraps ? 1 : 0));
  }

  // Codes of step i + 1 are on their way from shared memory while those of step i are decoded and
  // those of step i - 1 multiplied.
  __device__ void multiply_keys(int slot, float (&s)[kHeads / 2], RowState (&rows)[2]) {
    const Lane at = this_lane();
    const KeyFragments<Row> keys(at, ptx::shared_address(shared.ring[slot]), 16 * (at.warp % 2));
    const __half* scales = shared.scales[slot][0];
    const int place[2] = {scale_place(16 * (at.warp % 2) + at.g),
                          scale_place(16 * (at.warp % 2) + at.g + 8)};
    constexpr int kSteps = Row::kCodes / 32;
    Fragments a[kDepth];
    Raw raw[kAhead + 1];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) keys.load(i, raw[i]);
    __nv_bfloat162 largest{};  // magnitude of the RoPE values
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 2; ++k) keys.load_rope(2 * i + k, a[i][k]);
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k) {
        ptx::Wgmma<__nv_bfloat16, kHeads>::run(s, a[i][k], q_tile(Row::kCodes / 16 + 2 * i + k), 1);
      }
      ptx::wgmma_commit();
      if constexpr (Row::kRopeIsValue) {
        for (int k = 0; k < 2; ++k) keys.convert_rope(2 * i + k, a[i][k], largest);
      }
    }
    uint32_t pair[2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      constexpr int kStepsOfGroup = Row::kGroup / 32;
      if (i % kStepsOfGroup == 0) {
        for (int r = 0; r < 2; ++r)
          pair[r] = bits_of(__half2half2(scales[i / kStepsOfGroup * kSlotRows + place[r]]));
      }
      if (i + kAhead < kSteps) keys.load(i + kAhead, raw[(i + kAhead) % (kAhead + 1)]);
      ptx::wgmma_wait<kDepth - 1>();
      keys.decode(raw[i % (kAhead + 1)], pair, a[(i + 2) % kDepth]);
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k)
        ptx::Wgmma<__half, kHeads>::run(s, a[(i + 2) % kDepth][k], q_tile(2 * i + k), 1);
      ptx::wgmma_commit();
    }
    if (Row::kRopeIsValue && !fits_f16(largest)) give_up();
    for (int r = 0; r < 2; ++r)
      rows[r] = static_cast<RowState>(shared.rows[slot][16 * (at.warp % 2) + at.g + 8 * r]);
    ptx::wgmma_wait<0>();
    ptx::wgmma_results(s);
  }

  // Something of this item does not fit f16.
  __device__ void give_up() const {
    item().too_large = item().work.item + 1;
  }

  // Descriptor of dims 16 step .. of q. A constant: the compiler would otherwise keep all of them.
  __device__ static constexpr uint64_t q_tile(int step) {
    return ptx::swizzled_tile(kSharedBase + step / 4 * S::kTileBytes + step % 4 * 32);
  }

  // Dots of keys that do not exist become -inf.
  __device__ void mask(const RowState (&rows)[2], float (&s)[kHeads / 2]) {
    if (__all_sync(~0u, rows[0] == kKey && rows[1] == kKey)) return;
    const bool low = rows[0] != kNoKey, high = rows[1] != kNoKey;
    if (rows[0] == kKeyTooLarge || rows[1] == kKeyTooLarge) give_up();
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      if (!low) s[4 * n] = s[4 * n + 1] = -INFINITY;
      if (!high) s[4 * n + 2] = s[4 * n + 3] = -INFINITY;
    }
  }

  // m[i]: of head 8 (i / 2) + 2j + i % 2. values: in the order of reference_place().
  __device__ void read_heads(const float* values, float (&m)[kHeads / 4]) const {
    const Lane at = this_lane();
    const float* from = values + kHeads / 4 * at.j;
    if constexpr (kHeads == 8) {
      m[0] = from[0], m[1] = from[1];
    } else {
#pragma unroll
      for (int i = 0; i < kHeads / 4; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(from + i);
        m[i] = four.x, m[i + 1] = four.y, m[i + 2] = four.z, m[i + 3] = four.w;
      }
    }
  }

  // The other warpgroup's tile has moved the reference or not; if so the sums shrink with it.
  __device__ void follow(int tile) {
    const Lane at = this_lane();
    shared.decided[tile].wait(phase(tile));
    if (shared.moved[tile] == 0) return;
    state |= kReferenced;
    for (int i = 0; i < 2; ++i) {
      sums[i] *=
          shared.shrink[tile][reference_place<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
    }
  }
  // Of this warpgroup's tile.
  __device__ void decide(bool moved) {
    const Lane at = this_lane();
    if (at.warp == 0 && at.lane == 0) shared.moved[at.wg] = moved ? 1 : 0;
    __syncwarp();
    if (at.lane == 0) shared.decided[at.wg].arrive();
  }

  // Dots -> exponents relative to the reference.
  template <bool kTrackMaximum>
  __device__ void subtract_reference(float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    float top[4];  // of every fourth dot: shorter chains
    {
      float m[kHeads / 4];
      read_heads(item().reference, m);
#pragma unroll
      for (int i = 0; i < kHeads / 2; ++i) {
        s[i] = fmaf(s[i], p.log2_scale, -m[i / 4 * 2 + i % 2]);
        top[i % 4] = i < 4 ? s[i] : fmaxf(top[i % 4], s[i]);
      }
    }
    const float largest = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
    wait_for_room();
    const bool exceeds = largest > (turn(kReferenced) && !kTrackMaximum ? kHeadroom : -INFINITY);
    const bool moves = ptx::barrier_any(kBarrierOne + at.wg, kGroupThreads, exceeds);
    if (moves) move_reference(s);
    decide(moves);
  }

  // Both warpgroups have used what this one is about to overwrite.
  __device__ void wait_for_room() {
    const Lane at = this_lane();
    shared.weights_empty[at.wg].wait(phase(at.wg) ^ 1);
  }

  // Item::largest of this lane's heads after these logits of its keys.
  __device__ void raise_largest(const float (&z)[kHeads / 2], const float (&m)[kHeads / 4]) {
    float top[kHeads / 4];
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i)
      top[i] = fmaxf(z[i / 2 * 4 + i % 2], z[i / 2 * 4 + i % 2 + 2]) + m[i];
    reduce_over_keys(top, [](float a, float b) { return fmaxf(a, b); });
    for_each_head<kHeads>(
        top, [&](int head, float x) { atomicMax(&item().largest[head], ordered_int(x)); });
  }

  // Item::largest becomes the reference; `before` it was m.
  __device__ void add_change(float (&s)[kHeads / 2], const float (&m)[kHeads / 4]) {
    const Lane at = this_lane();
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
      const float change = m[i] - from_ordered_int(item().largest[i / 2 * 8 + 2 * at.j + i % 2]);
      s[i / 2 * 4 + i % 2] += change;
      s[i / 2 * 4 + i % 2 + 2] += change;
    }
  }

  // The same for both tiles of a pair when no key was before them: the reference becomes the
  // largest logit of both, if they have one.
  __device__ void find_reference(float (&s)[kHeads / 2]) {
    const float none[kHeads / 4] = {};
    for (float& z : s) z *= p.log2_scale;
    raise_largest(s, none);
    wait_for_room();
    bool has_key = false;
    for (const float z : s) has_key |= z != -INFINITY;
    const bool any = ptx::barrier_any(kBarrierBoth, kConsumers, has_key);
    if (any) {
      add_change(s, none);
      const int head = this_thread();
      if (head < kHeads) set_reference(head);
      state |= kReferenced;
    }
    decide(false);
  }

  __device__ void set_reference(int head) {
    const float now = from_ordered_int(item().largest[head]);
    // Adding m to s and taking it away again costs s bits; from 2^28 on more than kHeadroom.
    if (!(fabsf(now) < 0x1p24f)) give_up();
    item().reference[reference_place<kHeads>(head)] = now;
  }

  // The reference becomes the largest logit of all keys so far, and the exponents s and this
  // warpgroup's sums follow.
  __device__ void move_reference(float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    {
      float m[kHeads / 4];
      read_heads(item().reference, m);
      raise_largest(s, m);
      ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
      add_change(s, m);
    }
    const int head = at.warp * kWarp + at.lane;
    if (head < kHeads) {
      const int place = reference_place<kHeads>(head);
      const float before = item().reference[place];
      set_reference(head);
      shared.shrink[at.wg][place] =
          turn(kReferenced) ? exp2f(before - item().reference[place]) : 1.f;  // of 0
    }
    ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
    for (int i = 0; i < 2; ++i) {
      sums[i] *=
          shared.shrink[at.wg][reference_place<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
    }
    state |= kReferenced;
  }

  // Exponents -> weights in shared memory.
  __device__ void weigh(float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    const int key_piece = 2 * at.warp + at.lane / 8 % 2, head = at.lane % 8;
    const uint32_t to = ptx::shared_address(shared.weights[at.wg]) + at.lane / 16 * 1024 +
                        head * 128 + 16 * (key_piece ^ head);
#pragma unroll
    for (int n = 0; n < kHeadTiles; n += 2) {
      for (int i = 4 * n; i < 4 * n + 8 && i < kHeads / 2; ++i)
        s[i] = ptx::exp2_approximately(s[i]);
      store_weights(to + n * 1024, s, n);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (at.lane == 0) shared.weights_full[at.wg].arrive();
    float both[kHeads / 4];  // of keys g and g + 8
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) both[i] = s[i / 2 * 4 + i % 2] + s[i / 2 * 4 + i % 2 + 2];
    reduce_over_keys(both, [](float a, float b) { return a + b; });
    for (int i = 0; i < 2; ++i) sums[i] += both[i];
  }

  // Head tiles n and n + 1 (there may be only one), keys g and g + 8 -> [heads, 64 keys] at `to`.
  __device__ static void store_weights(uint32_t to, const float (&s)[kHeads / 2], int n) {
    uint32_t r[4];
    for (int i = 0; i < (kHeadTiles == 1 ? 2 : 4); ++i) {
      r[i] = pack_f16(s[4 * n + 2 * i], s[4 * n + 2 * i + 1]);
    }
    if constexpr (kHeadTiles == 1) {
      ptx::stmatrix_x2_transposed(to, r[0], r[1]);
    } else {
      ptx::stmatrix_x4_transposed(to, r);
    }
  }

  // Of the warpgroup's dims in a slot.
  __device__ ValueFragments<Row> values_of(const Lane& at, int slot) const {
    return ValueFragments<Row>(at, ptx::shared_address(shared.ring[slot]) + at.wg * kOutTiles * 64);
  }
  __device__ const uint4* scales_of(const Lane& at, int slot) const {
    const __half* scales = &shared.scales[slot][at.wg * kOutTiles * 64 / Row::kGroup][8 * at.j];
    return reinterpret_cast<const uint4*>(scales);
  }

  __device__ void shrink_output(int tile) {
    float factors[kHeads / 4];
    read_heads(shared.shrink[tile], factors);
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      for (int i = 0; i < kHeads / 2; ++i) out[t][i] *= factors[i / 4 * 2 + i % 2];
    }
  }

  // What is between the ring and the products: steps of 32 keys and 64 dims.
  struct ValueOperands {
    Fragments a[kDepth];
    Raw raw[kAhead + 1];
    uint4 scales[kAhead + 1];
  };

  // One tile of the pair: two slots of 32 keys. Tile 1's products follow those of tile 0 that are
  // under way.
  template <int kPairTile>
  __device__ void multiply_values() {
    ValueOperands o;
    const Lane at = this_lane();
    constexpr int kFirst = 2 * kPairTile;
    // Who stored the weights has seen the rows; so has who sees the weights.
    shared.weights_full[kPairTile].wait(phase(kPairTile));
    if (shared.moved[kPairTile] != 0) shrink_output(kPairTile);
    constexpr uint64_t kWeights =
        ptx::swizzled_tile(kSharedBase + (S::kChunks + kPairTile) * S::kTileBytes);
    constexpr int kSteps = 2 * kOutTiles;
    const int slots[2] = {slot(kFirst), slot(kFirst + 1)};
    const ValueFragments<Row> values[2] = {values_of(at, slots[0]), values_of(at, slots[1])};
    const uint4* scales[2] = {scales_of(at, slots[0]), scales_of(at, slots[1])};
    const auto load = [&](int step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      values[half].load(t, o.raw[step % (kAhead + 1)]);
      o.scales[step % (kAhead + 1)] = scales[half][t * 64 / Row::kGroup * (kSlotRows / 8)];
    };
#pragma unroll
    for (int step = 0; step < kAhead; ++step) load(step);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      Fragments& a = o.a[step % kDepth];
      if (step + kAhead < kSteps) load(step + kAhead);
      ptx::wgmma_wait<kDepth - 1>();
      if (is_rope(at, t)) {
        values[half].load_rope(at, a);
      } else {
        values[half].decode(o.raw[step % (kAhead + 1)], o.scales[step % (kAhead + 1)], a);
      }
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k)
        ptx::Wgmma<__half, kHeads>::run(out[t], a[k], kWeights + 4 * half + 2 * k, 1);
      ptx::wgmma_commit();
      if (t + 1 < kOutTiles) continue;
      __syncwarp();
      if (at.lane == 0) shared.empty[slots[half]].arrive();
    }
    finish_values(kPairTile);
  }

  // The products with the weights of a tile are done.
  __device__ void finish_values(int tile) {
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) ptx::wgmma_results(out[t]);
    if (this_thread() % kWarp == 0) shared.weights_empty[tile].arrive();
  }

  // Whether the warpgroup's tile t of dims is RoPE.
  __device__ bool is_rope(const Lane& at, int t) const {
    return Row::kRopeIsValue && t == kOutTiles - 1 && at.wg == 1;
  }
};

}  // namespace dsv4::sm90_fp8
