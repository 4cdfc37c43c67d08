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

constexpr int kBarrierBoth = 1, kBarrierOne = 2;  // kBarrierOne + w: of warpgroup w
constexpr float kHeadroom = 8.f;                  // weights up to 2^8, far below f16's 2^16

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
  float sums[kHeads / 4];            // of this lane's keys; heads 8 n + 2j, + 1
  bool referenced;                   // a key has set the reference
  int slots_used = 0, parity = 0;    // since the kernel began; of the iteration

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
      decode_scales(first);
      ptx::barrier_sync(kBarrierOne + wg, kGroupThreads);
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
    parity ^= 1;
  }

 private:
  __device__ void wait_full(int n) { shared.full[n % S::kSlots].wait(n / S::kSlots % 2); }

  // Codes of the tile's scales -> f16. A half of the warpgroup, one key a thread.
  __device__ void decode_scales(int first) {
    const int key = static_cast<int>(threadIdx.x) % kGroupThreads;
    if (key >= kTile) return;
    const int slot = (first + key / kSlotRows) % S::kSlots, row = key % kSlotRows;
    const uint8_t* raw = shared.raw_scales[slot] + row * Row::kScaleBytes;
    __half* to = &shared.scales[parity][wg][0][key - row + scale_place(row)];
    bool fits = true;
    if constexpr (Row::kFloatScales) {
      const float4 scales = *reinterpret_cast<const float4*>(raw);
      const float each[4] = {scales.x, scales.y, scales.z, scales.w};
      for (int i = 0; i < 4; ++i) {
        fits &= fabsf(each[i]) <= 128.f;
        to[i * kTile] = __float2half_rn(each[i]);
      }
    } else {
      const uint2 codes = *reinterpret_cast<const uint2*>(raw);
#pragma unroll
      for (int i = 0; i < S::kGroups; ++i) {
        const int code = (i < 4 ? codes.x >> 8 * i : codes.y >> 8 * (i - 4)) & 0xff;
        fits &= code <= 127 + 7;
        to[i * kTile] = __ushort_as_half(static_cast<uint16_t>(
            code > 112 ? (code - 112) << 10 : code > 102 ? 1 << (code - 103) : 0));
      }
    }
    if (!fits) shared.too_large = 1;
  }

  // Codes of step i + 1 are on their way from shared memory while those of step i are decoded and
  // those of step i - 1 multiplied.
  __device__ void multiply_keys(int first, float (&s)[kHeads / 2]) {
    const int slot = (first + warp / 2) % S::kSlots;
    const KeyFragments<Row> keys(ptx::shared_address(shared.ring[slot]), 16 * (warp % 2));
    const __half* scales = &shared.scales[parity][wg][0][warp / 2 * kSlotRows];
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
    __half2 pair[2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      constexpr int kStepsOfGroup = Row::kGroup / 32;
      if (i % kStepsOfGroup == 0) {
        for (int r = 0; r < 2; ++r) pair[r] = __half2half2(scales[i / kStepsOfGroup * kTile + place[r]]);
      }
      if (i + 1 < kSteps) keys.load(i + 1, raw[(i + 1) % 2]);
      ptx::wgmma_wait<1>();
      keys.decode(raw[i % 2], pair, a[i % 2]);
      ptx::wgmma_fence();
      for (int k = 0; k < 2; ++k) ptx::Wgmma<__half, kHeads>::run(s, a[i % 2][k], q_tile(2 * i + k), 1);
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
    const bool low = shared.valid[slot][row] != 0, high = shared.valid[slot][row + 8] != 0;
    if (__all_sync(~0u, low && high)) return;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      if (!low) s[4 * n] = s[4 * n + 1] = -INFINITY;
      if (!high) s[4 * n + 2] = s[4 * n + 3] = -INFINITY;
    }
  }

  __device__ float2 reference_of(int n) const {  // of heads 8 n + 2j, + 1
    return *reinterpret_cast<const float2*>(&shared.reference[8 * n + 2 * j]);
  }

  // Dots -> exponents relative to the reference -> weights in shared memory.
  template <bool kTrackMaximum>
  __device__ void weigh(float (&s)[kHeads / 2], bool has_tile) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const float2 m = reference_of(n);
      for (int i = 0; i < 4; ++i) {
        s[4 * n + i] = fmaf(s[4 * n + i], log2_scale, i % 2 == 0 ? -m.x : -m.y);
        top = fmaxf(top, s[4 * n + i]);
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
      for (int i = 2 * n; i < 2 * n + 4 && i < kHeads / 4; ++i) {
        const int at = 4 * (i / 2) + i % 2;
        sums[i] += s[at] + s[at + 2];
      }
      store_weights(to + n * 1024, s, n);
    }
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
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const float2 m = reference_of(n);
      for (int i = 0; i < 2; ++i) {
        float top = fmaxf(s[4 * n + i], s[4 * n + 2 + i]);
        for (int lanes = 4; lanes < kWarp; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        if (g == n) atomicMax(&shared.largest[8 * n + 2 * j + i], ordered_int(top + (i == 0 ? m.x : m.y)));
      }
    }
    ptx::barrier_sync(kBarrierBoth, kConsumers);
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      const float2 m = reference_of(n);
      for (int i = 0; i < 2; ++i) {
        const float change = (i == 0 ? m.x : m.y) - from_ordered_int(shared.largest[8 * n + 2 * j + i]);
        const float shrink = referenced ? exp2_fast(change) : 1.f;  // of zeros
        s[4 * n + i] += change;
        s[4 * n + 2 + i] += change;
        sums[2 * n + i] *= shrink;
        for (int t = 0; t < kOutTiles; ++t) {
          out[t][4 * n + i] *= shrink;
          out[t][4 * n + 2 + i] *= shrink;
        }
      }
    }
    ptx::barrier_sync(kBarrierBoth, kConsumers);  // all have read `reference`
    if (static_cast<int>(threadIdx.x) < kHeads) {
      shared.reference[threadIdx.x] = from_ordered_int(shared.largest[threadIdx.x]);
    }
    referenced = true;
  }

  // One tile of the iteration: two slots of 32 keys.
  __device__ void multiply_values(int tile) {
    const int n = slots_used + 2 * tile;
    if (tile != wg) wait_full(n), wait_full(n + 1);  // the other warpgroup saw it; so must this one
    const uint64_t weights =
        ptx::swizzled_tile(ptx::shared_address(shared.weights[0]) + tile * S::kTileBytes);
    const __half* scales = &shared.scales[parity][tile][wg * kOutTiles * 64 / Row::kGroup][8 * j];
    const ValueFragments<Row> values[2] = {{ptx::shared_address(shared.ring[n % S::kSlots])},
                                           {ptx::shared_address(shared.ring[(n + 1) % S::kSlots])}};
    constexpr int kSteps = 2 * kOutTiles;
    Fragments a[2];
    Raw raw[2];
    uint4 scale[2];
    const auto load = [&](int step) {
      const int half = step / kOutTiles, t = step % kOutTiles;
      if (is_rope(t)) return;
      values[half].load(wg * kOutTiles + t, raw[step % 2]);
      scale[step % 2] = *reinterpret_cast<const uint4*>(scales + t * 64 / Row::kGroup * kTile + half * kSlotRows);
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
        ptx::Wgmma<__half, kHeads>::run(out[t], a[step % 2][k], weights + 4 * half + 2 * k, 1);
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
