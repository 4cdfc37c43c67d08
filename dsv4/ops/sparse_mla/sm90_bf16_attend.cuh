// The consumers of sm90_bf16.cu: two warpgroups that take turns at making the weights of a tile.
//
//   group 0   dots 0 | weights 0 | values 0 | dots 2 ... values 1 ... dots 2 | weights 2 | ...
//   group 1   dots 1 .... values 0 ... dots 1 | weights 1 | values 1 | dots 3 ....
//
// While one group is at its weights, the other's products keep the tensor cores busy. Three of four
// parts of a tile's dots come before the values of the tile in front of it: with two the other
// group's weights come too late for the tensor cores, with four the buffer is free too late for the
// copies (2026-11-21: 3190, 3020 and 3160 clocks per tile of d 576).
//
// Fragments as in ptx/wgmma.cuh: a thread has two rows (heads), g and g + 8 of its warp's 16. Both
// groups lay out a tile's weights in the same way, so thread i of one group passes its registers to
// thread i of the other and nobody else needs to know.
//
// All exponentials are of base 2. Everything kept over tiles is relative to `largest`.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_plan.cuh"

namespace dsv4::sm90_bf16 {

// What dots are relative to: their maximum, or anything finite if there is none.
__device__ inline float base_of(float largest) {
  return largest == -INFINITY ? 0.f : largest;
}

template <int kPieces>
struct Attend {
  using Weights = uint32_t[kKeys / 16][4];

  Shared<kPieces>& shared;
  int group, thread, warp, lane;
  uint64_t q_tile, k_tile;              // descriptors of piece 0: q, this group's buffer
  uint64_t own_v_tiles, other_v_tiles;  // this group's columns in its buffer and in the other
  float scale;                          // of a dot, in powers of 2
  float values[kParts / 2][64];         // [2 rows, 2 parts of this group]
  float dots[32];                       // [2 rows, 64 keys]
  float largest[2];                     // dot so far
  float sums[2], others[2];  // of this thread's weights, in this group's tiles and in the other's

  __device__ Attend(Shared<kPieces>& memory, float dot_scale)
      : shared(memory),
        // The shuffle tells the compiler that warps agree, or it serialises wgmma in branches.
        group(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0)),
        thread(static_cast<int>(threadIdx.x) % kGroup),
        warp(thread / kWarp),
        lane(thread % kWarp),
        q_tile(ptx::make_smem_desc_128B(ptx::smem_address(memory.q))),
        k_tile(ptx::make_smem_desc_128B(ptx::smem_address(memory.keys[group]))),
        own_v_tiles(value_tiles(group)),
        other_v_tiles(value_tiles(1 - group)),
        scale(dot_scale * 1.4426950408889634f) {}

  __device__ uint64_t value_tiles(int buffer) const {
    const Piece* first = &shared.keys[buffer][group * (kValuePieces / 2)];
    return ptx::make_smem_desc_128B(ptx::smem_address(first), kPieceBytes);
  }

  __device__ void start_query() {
#pragma unroll
    for (int p = 0; p < kParts / 2; ++p) {
#pragma unroll
      for (float& v : values[p]) v = 0.f;
    }
    for (int r = 0; r < 2; ++r) {
      largest[r] = -INFINITY;
      sums[r] = others[r] = 0.f;
    }
  }

  // Lane 0 speaks for what the warp has done.
  __device__ void arrive(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }

  // --- dots: z [64 heads, 64 keys] = q [64, d] k^T ---

  __device__ void multiply_piece(int piece, bool accumulate) {
#pragma unroll
    for (int step = 0; step < kPieceWidth / 16; ++step) {
      const uint32_t at = piece * kPieceBytes + 32 * step;
      ptx::Wgmma<bf16, kKeys>::run(dots, ptx::advance_desc(q_tile, at),
                                   ptx::advance_desc(k_tile, at), accumulate || step > 0);
    }
  }

  // Parts kBegin .. kEnd - 1, as they come.
  template <int kBegin, int kEnd>
  __device__ void multiply_keys(uint32_t tile) {
#pragma unroll
    for (int part = kBegin; part < kEnd; ++part) {
      shared.full[group][part].wait(phase(tile));
      // The copies were ordinary writes, by other threads.
      ptx::fence_proxy_async();
      ptx::wgmma_fence();
      if (has_rope(kPieces, part)) multiply_piece(kValuePieces, false);
      const int piece = first_piece(part, group);
      multiply_piece(piece, has_rope(kPieces, part) || part > 0);
      multiply_piece(piece + 1, true);
    }
    ptx::wgmma_commit_group();
  }

  // --- weights ---

  // Everything but `values` relative to `now`; returns what those are to be multiplied with.
  __device__ float2 move_sums(const float (&now)[2]) {
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shrink[r] = ptx::ex2_approx_ftz((largest[r] - base_of(now[r])) * scale);
      largest[r] = now[r];
      sums[r] *= shrink[r];
      others[r] *= shrink[r];
    }
    return {shrink[0], shrink[1]};
  }

  // Mostly there is nothing to do: the largest dot seldom changes.
  __device__ void shrink_values(const float2& shrink) {
    if (!__any_sync(~0u, shrink.x != 1.f || shrink.y != 1.f)) return;
#pragma unroll
    for (int p = 0; p < kParts / 2; ++p) {
#pragma unroll
      for (int i = 0; i < 64; ++i) values[p][i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
    }
  }

  __device__ void mask_dots(uint64_t valid) {
    if (valid == ~uint64_t{0}) return;
    const uint64_t mine = valid >> (2 * (lane % 4));
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if ((mine >> (8 * (i / 4) + i % 2) & 1) == 0) dots[i] = -INFINITY;
    }
  }

  // Largest of the dots so far, over the four lanes of a row.
  __device__ void find_largest(float (&now)[2]) const {
    float top[2][4];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* four = dots + 8 * i + 2 * r;
        top[r][i] = fmaxf(fmaxf(four[0], four[1]), fmaxf(four[4], four[5]));
      }
      now[r] = fmaxf(fmaxf(fmaxf(top[r][0], top[r][1]), fmaxf(top[r][2], top[r][3])), largest[r]);
    }
#pragma unroll
    for (int step = 1; step <= 2; ++step) {
#pragma unroll
      for (int r = 0; r < 2; ++r) now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], step));
    }
  }

  // Dots to weights, rounded to bf16 for the product; the sums keep them unrounded.
  __device__ void weigh(Weights& weights) {
    const float base[2] = {base_of(largest[0]) * scale, base_of(largest[1]) * scale};
    float even[2] = {0.f, 0.f}, odd[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float a = ptx::ex2_approx_ftz(fmaf(dots[4 * n + 2 * r], scale, -base[r]));
        const float b = ptx::ex2_approx_ftz(fmaf(dots[4 * n + 2 * r + 1], scale, -base[r]));
        even[r] += a;
        odd[r] += b;
        weights[n / 2][n % 2 * 2 + r] = ptx::as_bits(__floats2bfloat162_rn(a, b));
      }
    }
    for (int r = 0; r < 2; ++r) sums[r] += even[r] + odd[r];
  }

  __device__ void share(const Weights& weights) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      shared.weights[k][thread] = {weights[k][0], weights[k][1], weights[k][2], weights[k][3]};
    }
    shared.summary[thread] = {largest[0], largest[1], sums[0], sums[1]};
    shared.ready[group][warp].arrive();
  }

  // --- values: out [64 heads, 256 columns] += weights [64, 64 keys] v ---

  // A committed group per part.
  __device__ void multiply_values(const Weights& weights, uint64_t v_tiles) {
#pragma unroll
    for (int part = 0; part < kParts / 2; ++part) {
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        const uint32_t at = 2 * part * kPieceBytes + 16 * k * kPieceRow;
        ptx::Wgmma<bf16, 2 * kPieceWidth, 1>::run(values[part], weights[k],
                                                  ptx::advance_desc(v_tiles, at), 1);
      }
      ptx::wgmma_commit_group();
    }
  }

  // Parts of a buffer are free as soon as they are multiplied; kLater groups of products have been
  // committed since. (One product of 256 columns, and both parts free at its end, is slower.)
  template <int kLater>
  __device__ void release_values(int buffer) {
    const int first = buffer == group ? 0 : kParts / 2;  // of this group's two parts
    ptx::wgmma_wait_group<kLater + 1>();
    arrive(shared.free[buffer][first]);
    ptx::wgmma_wait_group<kLater>();
    arrive(shared.free[buffer][first + 1]);
#pragma unroll
    for (int part = 0; part < kParts / 2; ++part) ptx::wgmma_fence_operand(values[part]);
  }

  // Starts on a tile of the other group, whose fence of the proxy is in front of its `ready`. The
  // products read `weights` until release_values().
  __device__ void add_other_tile(uint32_t tile, Weights& weights) {
    shared.ready[1 - group][warp].wait(phase(tile));
    const float4 summary = shared.summary[thread];
    const float now[2] = {summary.x, summary.y};
    shrink_values(move_sums(now));
    others[0] = summary.z;
    others[1] = summary.w;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint4 four = shared.weights[k][thread];
      weights[k][0] = four.x, weights[k][1] = four.y, weights[k][2] = four.z,
      weights[k][3] = four.w;
    }
    multiply_values(weights, other_v_tiles);
  }

  // Weights and values of this group's tile, whose dots are there.
  __device__ void add_own_tile(uint64_t valid) {
    mask_dots(valid);
    float now[2];
    find_largest(now);
    const float2 shrink = move_sums(now);
    Weights weights;
    weigh(weights);
    share(weights);
    shrink_values(shrink);
    multiply_values(weights, own_v_tiles);
    release_values<0>(group);
  }

  // The dots of this group's tile are there; returns which keys count.
  __device__ uint64_t release_keys(bool last) {
    const uint64_t valid = *reinterpret_cast<const uint64_t*>(shared.valid[group]);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(dots);
    if (Shared<kPieces>::kRope) arrive(shared.rope_free[group]);
    if (last) arrive(shared.q_free);
    return valid;
  }

  // All tiles of a query, an even number; the first is `first`.
  __device__ void attend(uint32_t first, int tiles, uint32_t use) {
    start_query();
    shared.q_full.wait(use % 2);
    int i = 1;
    if (group == 0) {
      multiply_keys<0, kParts>(first);
      add_own_tile(release_keys(tiles == 2));
      i = 2;
    }
    for (; i < tiles; i += 2) {
      const uint32_t tile = first + i;
      multiply_keys<0, 3>(tile);
      Weights weights;
      add_other_tile(tile - 1, weights);
      multiply_keys<3, kParts>(tile);
      release_values<1>(1 - group);
      add_own_tile(release_keys(i + 2 >= tiles));
    }
    if (group == 0) {
      Weights weights;
      add_other_tile(first + tiles - 1, weights);
      release_values<0>(1 - group);
    }
  }

  // --- the end of a query ---

  template <class Out>
  __device__ void finish_query(const Inputs& in, const Item& item) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sums[r] + others[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int head = item.first_head + 16 * warp + 8 * r + lane / 4;
      const bool exists = head < in.heads;
      if (exists && group == 0 && lane % 4 == 0) store_sums(in, item, head, largest[r], sum);
      const float factor = exists ? factor_of(in, head, largest[r], sum) : 0.f;
      Out* to = static_cast<Out*>(in.out) + item.at(in.out_at, exists ? head : 0) + group * kHalf;
      store_row(r, factor, exists ? to : nullptr);
    }
  }

 private:
  __device__ static void store_sums(const Inputs& in, const Item& item, int head, float top,
                                    float sum) {
    const bool any = top > -INFINITY;
    if (in.lse != nullptr) {
      in.lse[item.at(in.lse_at, head)] = any ? in.scale * top + logf(sum) : INFINITY;
    }
    if (in.max_logits != nullptr) in.max_logits[item.at(in.max_at, head)] = in.scale * top;
  }

  // What a head's values are multiplied with; no valid row: the largest dot is -inf.
  __device__ static float factor_of(const Inputs& in, int head, float top, float sum) {
    if (top == -INFINITY) return 0.f;
    if (!in.normalized) return 1.f;
    return 1.f / (in.sink == nullptr ? sum : sum + expf(in.sink[head] - in.scale * top));
  }

  // Columns 8 n + 2 j, + 1.
  __device__ float2 pair(int n, int r, float factor) const {
    const float* two = values[n / 16] + 4 * (n % 16) + 2 * r;
    return {two[0] * factor, two[1] * factor};
  }

  // f32: four lanes write a sector.
  __device__ void store_row(int r, float factor, float* to) const {
    if (to == nullptr) return;
#pragma unroll
    for (int n = 0; n < kHalf / 8; ++n) {
      *reinterpret_cast<float2*>(to + 8 * n + 2 * (lane % 4)) = pair(n, r, factor);
    }
  }

  // bf16: neighbours swap a pair, so that each has four columns, of 8 n or of 8 (n + 1), and four
  // lanes write a sector.
  __device__ void store_row(int r, float factor, bf16* to) const {
    const bool odd = lane % 2 != 0;
    const int column = 8 * (lane % 2) + 4 * (lane % 4 / 2);
#pragma unroll
    for (int n = 0; n < kHalf / 8; n += 2) {
      const float2 a = pair(n, r, factor), b = pair(n + 1, r, factor);
      const uint32_t low = ptx::as_bits(__floats2bfloat162_rn(a.x, a.y));
      const uint32_t high = ptx::as_bits(__floats2bfloat162_rn(b.x, b.y));
      const uint32_t got = __shfl_xor_sync(~0u, odd ? low : high, 1);
      if (to == nullptr) continue;
      *reinterpret_cast<uint2*>(to + 8 * n + column) = odd ? uint2{got, high} : uint2{low, got};
    }
  }
};

template <int kPieces, class Out>
__device__ void consume(const Inputs& in, Shared<kPieces>& shared) {
  Attend<kPieces> attend(shared, in.scale);
  uint32_t tile = 0, use = 0;
  for (int index = static_cast<int>(blockIdx.x); index < in.items;
       index += static_cast<int>(gridDim.x), ++use) {
    const Item item(in, index);
    const int tiles = item.tiles();
    attend.attend(tile, tiles, use);
    attend.template finish_query<Out>(in, item);
    tile += tiles;
  }
}

}  // namespace dsv4::sm90_bf16
