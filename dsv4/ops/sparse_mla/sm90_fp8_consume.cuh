// The computing warpgroups. Tiles of 64 keys come in pairs (the last may be alone):
//
//   warpgroup w:  S^T = K Q^T of tile w         [64 keys, heads]      A = keys, from the ring
//                 P^T = 2^(c S^T - m)           f16, to shared memory
//                 O^T += V^T P^T of both tiles  [256 dims, heads]     A = values, from the ring
//
// Tile 1's weights follow tile 0's, so the two warpgroups run a softmax apart: while one computes
// exponentials the other has the tensor cores.
//
// m is no running maximum but a reference that moves only when a logit exceeds it by kHeadroom:
// most tiles rescale nothing. A tile that moves it leaves the factor by which everything before it
// shrinks.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_work.cuh"

namespace dsv4::sm90_fp8 {

constexpr int kBarrierBoth = 1, kBarrierOne = 2;  // kBarrierOne + w: of warpgroup w
constexpr int kDepth = 3;         // steps whose operands are in registers: decoded or multiplied
constexpr float kHeadroom = 8.f;  // weights up to 2^8, far below f16's 2^16

__device__ inline uint32_t pack_f16(float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  return ptx::as_bits(__floats2bfloat162_rn(low, high));
}

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

template <class Row, int kHeads>
struct Consumer {
  using S = Shared<Row, kHeads>;
  static constexpr int kHeadTiles = kHeads / 8, kOutTiles = kWidthV / 64 / 2;

  const Params& p;
  S& shared;
  float out[kOutTiles][kHeads / 2];  // O^T; dims 256 wg + 64 t + 16 warp + ..
  __half2 largest_rope{};            // of the values in f16
  float sums[2];                     // of the warp's weights; heads as of for_each_head
  bool referenced;                   // a key has set the reference
  int slots_used = 0, first_tiles = 0, second_tiles = 0;  // since the kernel began

  __device__ Consumer(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void begin() {
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      for (int i = 0; i < kHeads / 2; ++i) out[t][i] = 0.f;
    }
    for (float& sum : sums) sum = 0.f;
    largest_rope = __half2{};
    referenced = false;
  }

  // Whether a RoPE value was too large for f16.
  __device__ bool has_large_values() const {
    return Row::kRopeIsValue && !__hble2(largest_rope, __float2half2_rn(65504.f));
  }

  // One or two tiles.
  template <bool kTrackMaximum>
  __device__ void iterate(int tiles) {
    const Lane at = this_lane();
    float s[kHeads / 2] = {};
    const bool has_tile = at.wg < tiles;
    if (has_tile) {
      const int first = slots_used + 2 * at.wg;
      wait_full(first), wait_full(first + 1);
      multiply_keys(first, s);
      mask(first, s);
    }
    if (at.wg == 1) follow(0);
    if (has_tile) weigh<kTrackMaximum>(s);
    multiply_values<0>();
    if (tiles > 1) {
      if (at.wg == 0) follow(1);
      multiply_values<1>();
    }
    slots_used += 2 * tiles;
    ++first_tiles;
    second_tiles += tiles - 1;
  }

 private:
  // Of the barriers of tile 0 or 1 of the pair.
  __device__ int phase(int tile) const {
    return (tile == 0 ? first_tiles : second_tiles) % 2;
  }
  __device__ void wait_full(int n) {
    shared.full[n % S::kSlots].wait(n / S::kSlots % 2);
  }

  // Codes of step i + 1 are on their way from shared memory while those of step i are decoded and
  // those of step i - 1 multiplied.
  __device__ void multiply_keys(int first, float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    const int slot = (first + at.warp / 2) % S::kSlots;
    const KeyFragments<Row> keys(at, ptx::shared_address(shared.ring[slot]), 16 * (at.warp % 2));
    const __half* scales = shared.scales[slot][0];
    const int place[2] = {scale_place(16 * (at.warp % 2) + at.g),
                          scale_place(16 * (at.warp % 2) + at.g + 8)};
    constexpr int kSteps = Row::kCodes / 32;
    Fragments a[kDepth];
    Raw raw[2];
    keys.load(0, raw[0]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 2; ++k) keys.rope(2 * i + k, a[i][k]);
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k) {
        ptx::Wgmma<__nv_bfloat16, kHeads>::run(s, a[i][k], q_tile(Row::kCodes / 16 + 2 * i + k), 1);
      }
      ptx::wgmma_commit();
    }
    uint32_t pair[2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      constexpr int kStepsOfGroup = Row::kGroup / 32;
      if (i % kStepsOfGroup == 0) {
        for (int r = 0; r < 2; ++r)
          pair[r] = bits_of(__half2half2(scales[i / kStepsOfGroup * kSlotRows + place[r]]));
      }
      if (i + 1 < kSteps) keys.load(i + 1, raw[(i + 1) % 2]);
      ptx::wgmma_wait<kDepth - 1>();
      keys.decode(raw[i % 2], pair, a[(i + 2) % kDepth]);
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k)
        ptx::Wgmma<__half, kHeads>::run(s, a[(i + 2) % kDepth][k], q_tile(2 * i + k), 1);
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_results(s);
  }

  // Descriptor of dims 16 step .. of q. A constant: the compiler would otherwise keep all of them.
  __device__ static constexpr uint64_t q_tile(int step) {
    return ptx::swizzled_tile(kSharedBase + step / 4 * S::kTileBytes + step % 4 * 32);
  }

  // Dots of keys that do not exist become -inf.
  __device__ void mask(int first, float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    const int slot = (first + at.warp / 2) % S::kSlots, row = 16 * (at.warp % 2) + at.g;
    const int states[2] = {shared.rows[slot][row], shared.rows[slot][row + 8]};
    if (__all_sync(~0u, states[0] == kKey && states[1] == kKey)) return;
    const bool low = states[0] != kNoKey, high = states[1] != kNoKey;
    if (states[0] == kKeyTooLarge || states[1] == kKeyTooLarge) shared.too_large = shared.item + 1;
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

  // The other warpgroup's weights of a tile are there: the sums shrink with them.
  __device__ void follow(int tile) {
    const Lane at = this_lane();
    shared.weights_full[tile].wait(phase(tile));
    if (shared.moved[tile] == 0) return;
    referenced = true;
    for (int i = 0; i < 2; ++i) {
      sums[i] *=
          shared.shrink[tile][reference_place<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
    }
  }

  // Dots -> exponents relative to the reference -> weights in shared memory.
  template <bool kTrackMaximum>
  __device__ void weigh(float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    float top = -INFINITY;
    {
      float m[kHeads / 4];
      read_heads(shared.reference, m);
#pragma unroll
      for (int i = 0; i < kHeads / 2; ++i) {
        s[i] = fmaf(s[i], p.log2_scale, -m[i / 4 * 2 + i % 2]);
        top = fmaxf(top, s[i]);
      }
    }
    // Both warpgroups have used what is about to be overwritten.
    shared.weights_empty[at.wg].wait(phase(at.wg) ^ 1);
    const bool exceeds = top > (referenced && !kTrackMaximum ? kHeadroom : -INFINITY);
    const bool moves = ptx::barrier_any(kBarrierOne + at.wg, kGroupThreads, exceeds);
    if (moves) move_reference(s);
    if (at.warp == 0 && at.lane == 0) shared.moved[at.wg] = moves ? 1 : 0;
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
    shared.weights_full[at.wg].arrive();
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

  // The reference becomes the largest logit of all keys so far, and the exponents s and this
  // warpgroup's sums follow.
  __device__ void move_reference(float (&s)[kHeads / 2]) {
    const Lane at = this_lane();
    float m[kHeads / 4], top[kHeads / 4];
    read_heads(shared.reference, m);
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
      top[i] = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + i % 2 + 2]) + m[i];
    }
    reduce_over_keys(top, [](float a, float b) { return fmaxf(a, b); });
    for_each_head<kHeads>(
        top, [&](int head, float x) { atomicMax(&shared.largest[head], ordered_int(x)); });
    ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
      const float change = m[i] - from_ordered_int(shared.largest[i / 2 * 8 + 2 * at.j + i % 2]);
      s[i / 2 * 4 + i % 2] += change;
      s[i / 2 * 4 + i % 2 + 2] += change;
    }
    ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);  // all have read `reference`
    const int head = at.warp * kWarp + at.lane;
    if (head < kHeads) {
      const int place = reference_place<kHeads>(head);
      const float now = from_ordered_int(shared.largest[head]);
      // Adding m to s and taking it away again costs s bits; from 2^28 on more than kHeadroom.
      if (!(fabsf(now) < 0x1p24f)) shared.too_large = shared.item + 1;
      shared.shrink[at.wg][place] =
          referenced ? exp2f(shared.reference[place] - now) : 1.f;  // of 0
      shared.reference[place] = now;
    }
    ptx::barrier_sync(kBarrierOne + at.wg, kGroupThreads);
    for (int i = 0; i < 2; ++i) {
      sums[i] *=
          shared.shrink[at.wg][reference_place<kHeads>(at.g / (64 / kHeads) * 8 + 2 * at.j + i)];
    }
    referenced = true;
  }

  __device__ ValueFragments<Row> slot_address(const Lane& at, int n) const {
    return ValueFragments<Row>(
        at, ptx::shared_address(shared.ring[n % S::kSlots]) + at.wg * kOutTiles * 64);
  }
  // Of this lane's keys in use number n of a slot, for the warpgroup's dims.
  __device__ const uint4* scales_of(const Lane& at, int n) const {
    const __half* scales =
        &shared.scales[n % S::kSlots][at.wg * kOutTiles * 64 / Row::kGroup][8 * at.j];
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

  // One tile of the pair: two slots of 32 keys.
  template <int kPairTile>
  __device__ void multiply_values() {
    constexpr int tile = kPairTile;
    const Lane at = this_lane();
    const int n = slots_used + 2 * tile;
    if (tile != at.wg)
      wait_full(n), wait_full(n + 1);  // the other warpgroup saw it; so must this one
    shared.weights_full[tile].wait(phase(tile));
    if (shared.moved[tile] != 0) shrink_output(tile);
    constexpr uint64_t kWeights =
        ptx::swizzled_tile(kSharedBase + (S::kChunks + kPairTile) * S::kTileBytes);
    const ValueFragments<Row> values[2] = {slot_address(at, n), slot_address(at, n + 1)};
    const uint4* scales[2] = {scales_of(at, n), scales_of(at, n + 1)};
    constexpr int kSteps = 2 * kOutTiles;
    Fragments a[kDepth];
    Raw raw[2];
    uint4 scale[2];
    const auto load = [&](int step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      if (is_rope(at, t)) return;
      values[half].load(t, raw[step % 2]);
      scale[step % 2] = scales[half][t * 64 / Row::kGroup * (kSlotRows / 8)];
    };
    load(0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      if (step + 1 < kSteps) load(step + 1);
      ptx::wgmma_wait<kDepth - 1>();
      if (is_rope(at, t)) {
        values[half].rope(at, a[step % kDepth], largest_rope);
      } else {
        values[half].decode(raw[step % 2], scale[step % 2], a[step % kDepth]);
      }
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k) {
        ptx::Wgmma<__half, kHeads>::run(out[t], a[step % kDepth][k], kWeights + 4 * half + 2 * k,
                                        1);
      }
      ptx::wgmma_commit();
      if (t + 1 < kOutTiles) continue;
      __syncwarp();
      if (at.lane == 0) shared.empty[(n + half) % S::kSlots].arrive();
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) ptx::wgmma_results(out[t]);
    if (at.lane == 0) shared.weights_empty[tile].arrive();
  }

  // Whether the warpgroup's tile t of dims is RoPE.
  __device__ bool is_rope(const Lane& at, int t) const {
    return Row::kRopeIsValue && t == kOutTiles - 1 && at.wg == 1;
  }
};

}  // namespace dsv4::sm90_fp8
