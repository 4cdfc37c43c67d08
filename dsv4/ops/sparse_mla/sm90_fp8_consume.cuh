// The computing warpgroups. An iteration is two tiles of 64 keys (the last may be one):
//
//   warpgroup w:  S^T = K Q^T of tile w      [64 keys, heads]      A = keys, from the ring
//                 P^T = 2^(c S^T - m)        f16, to shared memory
//   both meet
//   warpgroup w:  O^T += V^T P^T             [256 dims, heads]     A = values, from the ring
//
// m is no running maximum but a reference that moves only when a logit exceeds it by kHeadroom:
// most iterations rescale nothing and exchange nothing but one bit.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_work.cuh"

namespace dsv4::mla90 {

constexpr int kBarrierBoth = 1;
constexpr float kHeadroom = 8.f;  // weights up to 2^8, far below f16's 2^16

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline uint32_t pack_f16(float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  return ptx::as_bits(__floats2bfloat162_rn(low, high));
}

template <int kCount>
__device__ void hold(float (&registers)[kCount]) {  // products may be writing these
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

// values[i]: of heads 8 (i / 2) + 2j + i % 2, for this lane's keys -> this lane has the result over
// all keys of the warp of a few heads: for_each_head calls visit(head, value) for them. Lanes halve
// what they keep at every exchange.
template <int kBit = 4, int kKept = 0, int kCount, class Combine>
__device__ void reduce_over_keys(float (&values)[kCount], const Combine& combine) {
  constexpr int kBefore = kKept == 0 ? kCount : kKept, kAfter = kBefore > 2 ? kBefore / 2 : kBefore;
  const bool upper = (threadIdx.x % kWarp / 4 & kBit) != 0;
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
  const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
  if (g % kSharing != 0) return;
  for (int i = 0; i < 2; ++i) visit(8 * (g / kSharing) + 2 * j + i, values[i]);
}

template <class Row, int kHeads>
struct Consumer {
  using S = Shared<Row, kHeads>;
  static constexpr int kHeadTiles = kHeads / 8, kOutTiles = kWidthV / 64 / 2;

  const Params& p;
  S& shared;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int wg = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int warp = static_cast<int>(threadIdx.x) / kWarp % 4;  // of the warpgroup
  const int g = lane / 4, j = lane % 4;
  const float log2_scale;
  float out[kOutTiles][kHeads / 2];  // O^T; dims 256 wg + 64 t + 16 warp + ..
  __half2 largest_rope{};            // of the values in f16
  float sums[2];                     // of the warp's weights; heads as of for_each_head
  bool referenced;                   // a key has set the reference
  int slots_used = 0;                // since the kernel began

  __device__ Consumer(const Params& params, S& memory)
      : p(params), shared(memory), log2_scale(params.scale * 1.44269504f) {}

  __device__ void clear() {
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      for (int i = 0; i < kHeads / 2; ++i) out[t][i] = 0.f;
    }
    for (float& sum : sums) sum = 0.f;
    largest_rope = {};
    referenced = false;
  }

  // One iteration of one or two tiles.
  template <bool kTrackMaximum>
  __device__ void iterate(int tiles) {
    float s[kHeads / 2] = {};
    if (wg < tiles) {
      const int first = slots_used + 2 * wg;
      wait_full(first), wait_full(first + 1);
      multiply_keys(first, s);
      mask(first, s);
    } else {
      for (float& x : s) x = -INFINITY;
    }
    weigh<kTrackMaximum>(s, wg < tiles);
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrierBoth, kConsumers);
#pragma unroll 1
    for (int i = 0; i < tiles; ++i) multiply_values(i);
    slots_used += 2 * tiles;
  }

 private:
  __device__ void wait_full(int n) {
    shared.full[n % S::kSlots].wait(n / S::kSlots % 2);
  }

  // Codes of step i + 1 are on their way from shared memory while those of step i are decoded and
  // those of step i - 1 multiplied.
  __device__ void multiply_keys(int first, float (&s)[kHeads / 2]) {
    const int slot = (first + warp / 2) % S::kSlots;
    const KeyFragments<Row> keys(ptx::shared_address(shared.ring[slot]), 16 * (warp % 2));
    const __half* scales = shared.scales[slot][0];
    const int place[2] = {scale_place(16 * (warp % 2) + g), scale_place(16 * (warp % 2) + g + 8)};
    constexpr int kSteps = Row::kCodes / 32;
    Fragments a[2];
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
      ptx::wgmma_wait<1>();
      keys.decode(raw[i % 2], pair, a[i % 2]);
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k)
        ptx::Wgmma<__half, kHeads>::run(s, a[i % 2][k], q_tile(2 * i + k), 1);
      ptx::wgmma_commit();
    }
    ptx::wgmma_wait<0>();
    hold(s);
  }

  // Descriptor of dims 16 step .. of q. A constant: the compiler would otherwise keep all of them.
  __device__ static constexpr uint64_t q_tile(int step) {
    return ptx::swizzled_tile(kSharedBase + step / 4 * S::kTileBytes + step % 4 * 32);
  }

  // Dots of keys that do not exist become -inf.
  __device__ void mask(int first, float (&s)[kHeads / 2]) {
    const int slot = (first + warp / 2) % S::kSlots, row = 16 * (warp % 2) + g;
    const int states[2] = {shared.rows[slot][row], shared.rows[slot][row + 8]};
    if (__all_sync(~0u, states[0] == kKey && states[1] == kKey)) return;
    const bool low = states[0] != kNoKey, high = states[1] != kNoKey;
    if (states[0] == kKeyTooLarge || states[1] == kKeyTooLarge) shared.too_large = 1;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      if (!low) s[4 * n] = s[4 * n + 1] = -INFINITY;
      if (!high) s[4 * n + 2] = s[4 * n + 3] = -INFINITY;
    }
  }

  // m[i]: of head 8 (i / 2) + 2j + i % 2.
  __device__ void read_reference(float (&m)[kHeads / 4]) const {
    const float* from = shared.reference + kHeads / 4 * j;
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

  // Dots -> exponents relative to the reference -> weights in shared memory.
  template <bool kTrackMaximum>
  __device__ void weigh(float (&s)[kHeads / 2], bool has_tile) {
    float top = -INFINITY;
    {
      float m[kHeads / 4];
      read_reference(m);
#pragma unroll
      for (int i = 0; i < kHeads / 2; ++i) {
        s[i] = fmaf(s[i], log2_scale, -m[i / 4 * 2 + i % 2]);
        top = fmaxf(top, s[i]);
      }
    }
    // Also: the values' products of the last iteration have read its weights.
    const bool exceeds = top > (referenced && !kTrackMaximum ? kHeadroom : -INFINITY);
    if (ptx::barrier_any(kBarrierBoth, kConsumers, exceeds)) move_reference(s);
    if (!has_tile) return;
    const int key_piece = 2 * warp + lane / 8 % 2, head = lane % 8;
    const uint32_t to = ptx::shared_address(shared.weights[wg]) + lane / 16 * 1024 + head * 128 +
                        16 * (key_piece ^ head);
#pragma unroll
    for (int n = 0; n < kHeadTiles; n += 2) {
      for (int i = 4 * n; i < 4 * n + 8 && i < kHeads / 2; ++i) s[i] = exp2_fast(s[i]);
      store_weights(to + n * 1024, s, n);
    }
    float both[kHeads / 4];  // keys
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

  // The reference becomes the largest logit of all keys so far; what was summed follows, and the
  // exponents s.
  __device__ void move_reference(float (&s)[kHeads / 2]) {
    float m[kHeads / 4], top[kHeads / 4];
    read_reference(m);
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
      top[i] = fmaxf(s[i / 2 * 4 + i % 2], s[i / 2 * 4 + i % 2 + 2]) + m[i];
    }
    reduce_over_keys(top, [](float a, float b) { return fmaxf(a, b); });
    for_each_head<kHeads>(
        top, [&](int head, float x) { atomicMax(&shared.largest[head], ordered_int(x)); });
    ptx::barrier_sync(kBarrierBoth, kConsumers);
    const auto shrink = [&](float change) {
      return referenced ? exp2_fast(change) : 1.f;
    };  // of zeros
#pragma unroll
    for (int i = 0; i < kHeads / 4; ++i) {
      const float change = m[i] - from_ordered_int(shared.largest[i / 2 * 8 + 2 * j + i % 2]);
      const int at = i / 2 * 4 + i % 2;
      s[at] += change;
      s[at + 2] += change;
      const float factor = shrink(change);
      for (int t = 0; t < kOutTiles; ++t) {
        out[t][at] *= factor;
        out[t][at + 2] *= factor;
      }
    }
    for (int i = 0; i < 2; ++i) {
      const int head = g / (64 / kHeads) * 8 + 2 * j + i;
      sums[i] *= shrink(shared.reference[reference_place<kHeads>(head)] -
                        from_ordered_int(shared.largest[head]));
    }
    ptx::barrier_sync(kBarrierBoth, kConsumers);  // all have read `reference`
    if (static_cast<int>(threadIdx.x) < kHeads) {
      shared.reference[reference_place<kHeads>(static_cast<int>(threadIdx.x))] =
          from_ordered_int(shared.largest[threadIdx.x]);
    }
    referenced = true;
  }

  static constexpr uint64_t kWeights =
      ptx::swizzled_tile(kSharedBase + S::kChunks * S::kTileBytes);  // of tile 0
  __device__ static uint64_t with_low(uint64_t descriptor, uint32_t low) {
    return descriptor >> 32 << 32 | low;
  }
  __device__ ValueFragments<Row> slot_address(int n) const {
    return ValueFragments<Row>(ptx::shared_address(shared.ring[n % S::kSlots]) +
                               wg * kOutTiles * 64);
  }
  // Of this lane's keys in use number n of a slot, for the warpgroup's dims.
  __device__ const uint4* scales_of(int n) const {
    const __half* scales = &shared.scales[n % S::kSlots][wg * kOutTiles * 64 / Row::kGroup][8 * j];
    return reinterpret_cast<const uint4*>(scales);
  }

  // One tile of the iteration: two slots of 32 keys.
  __device__ void multiply_values(int tile) {
    const int n = slots_used + 2 * tile;
    if (tile != wg) wait_full(n), wait_full(n + 1);  // the other warpgroup saw it; so must this one
    const uint32_t weights = static_cast<uint32_t>(kWeights) + tile * (S::kTileBytes >> 4);
    const ValueFragments<Row> values[2] = {slot_address(n), slot_address(n + 1)};
    const uint4* scales[2] = {scales_of(n), scales_of(n + 1)};
    constexpr int kSteps = 2 * kOutTiles;
    Fragments a[2];
    Raw raw[2];
    uint4 scale[2];
    const auto load = [&](int step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      if (is_rope(t)) return;
      values[half].load(t, raw[step % 2]);
      scale[step % 2] = scales[half][t * 64 / Row::kGroup * (kSlotRows / 8)];
    };
    load(0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      if (step + 1 < kSteps) load(step + 1);
      ptx::wgmma_wait<1>();
      if (is_rope(t)) {
        values[half].rope(a[step % 2], largest_rope);
      } else {
        values[half].decode(raw[step % 2], scale[step % 2], a[step % 2]);
      }
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k) {
        ptx::Wgmma<__half, kHeads>::run(out[t], a[step % 2][k],
                                        with_low(kWeights, weights + 4 * half + 2 * k), 1);
      }
      ptx::wgmma_commit();
      if (t + 1 < kOutTiles) continue;
      __syncwarp();
      if (lane == 0) shared.empty[(n + half) % S::kSlots].arrive();
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) hold(out[t]);
  }

  // Whether the warpgroup's tile t of dims is RoPE.
  __device__ bool is_rope(int t) const {
    return Row::kRopeIsValue && t == kOutTiles - 1 && wg == 1;
  }
};

}  // namespace dsv4::mla90
