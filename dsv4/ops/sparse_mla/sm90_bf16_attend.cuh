// The consumers of sm90_bf16.cu: two warpgroups that take turns at making the weights of a tile.
//
//   group 0   dots 0 | weights 0 | values 0 ......... values 1 | dots 2 | ...
//   group 1   dots 1 ........... | values 0 | weights 1 | values 1 | ...
//
// While one group is at its weights, the other's products keep the tensor cores busy. Fragments as
// in ptx/wgmma.cuh: a thread has two rows (heads), g and g + 8 of its warp's 16. Both groups lay
// out a tile's weights in the same way, so thread i of one group passes its registers to thread i
// of the other and nobody else needs to know.
//
// All exponentials are of base 2. Everything kept over tiles is relative to `largest`.

#pragma once

#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_plan.cuh"

namespace dsv4::sm90_bf16 {

__device__ inline float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

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
  float values[128];                    // [2 rows, 256 columns of this group]
  float dots[32];                       // [2 rows, 64 keys]
  float largest[2];                     // dot so far
  float sums[2], others[2];  // of this thread's weights, in this group's tiles and in the other's

  __device__ Attend(Shared<kPieces>& memory, float dot_scale)
      : shared(memory),
        group(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup, 0)),
        thread(static_cast<int>(threadIdx.x) % kGroup),
        warp(thread / kWarp),
        lane(thread % kWarp),
        q_tile(ptx::swizzled_tile(ptx::shared_address(memory.q))),
        k_tile(ptx::swizzled_tile(ptx::shared_address(memory.keys[group]))),
        own_v_tiles(value_tiles(group)),
        other_v_tiles(value_tiles(1 - group)),
        scale(dot_scale * 1.4426950408889634f) {}

  __device__ uint64_t value_tiles(int buffer) const {
    const Piece* first = &shared.keys[buffer][group * (kValuePieces / 2)];
    return ptx::swizzled_tiles(ptx::shared_address(first), kPieceBytes);
  }

  __device__ void start_query() {
#pragma unroll
    for (float& v : values) v = 0.f;
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

  // Parts kBegin .. kEnd - 1, as they come.
  template <int kBegin, int kEnd>
  __device__ void multiply_keys(uint32_t tile) {
#pragma unroll
    for (int part = kBegin; part < kEnd; ++part) {
      shared.full[group][part].wait(phase(tile));
      // The copies were ordinary writes, by other threads.
      ptx::fence_proxy_async();
      ptx::wgmma_fence();
#pragma unroll
      for (int i = first_of_part<kPieces>(part); i < first_of_part<kPieces>(part + 1); ++i) {
#pragma unroll
        for (int step = 0; step < kPieceWidth / 16; ++step) {
          const uint32_t at = piece_in_order<kPieces>(i) * kPieceBytes + 32 * step;
          ptx::Wgmma<bf16, kKeys>::run(dots, ptx::further(q_tile, at), ptx::further(k_tile, at),
                                       i > 0 || step > 0);
        }
      }
    }
    ptx::wgmma_commit();
  }

  // --- weights ---

  // Everything but `values` relative to `now`; returns what those are to be multiplied with.
  __device__ float2 move_sums(const float (&now)[2]) {
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shrink[r] = exp2_approximately((largest[r] - base_of(now[r])) * scale);
      largest[r] = now[r];
      sums[r] *= shrink[r];
      others[r] *= shrink[r];
    }
    return {shrink[0], shrink[1]};
  }

  __device__ void shrink_values(const float2& shrink) {
#pragma unroll
    for (int i = 0; i < 128; ++i) values[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
  }

  __device__ void mask_dots() {
    const uint64_t bits = *reinterpret_cast<const uint64_t*>(shared.valid[group]);
    if (bits == ~uint64_t{0}) return;
    const uint64_t mine = bits >> (2 * (lane % 4));
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if ((mine >> (8 * (i / 4) + i % 2) & 1) == 0) dots[i] = -INFINITY;
    }
  }

  // Largest of the dots so far, over the four lanes of a row.
  __device__ void find_largest(float (&now)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      now[r] = largest[r];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        now[r] = fmaxf(now[r], fmaxf(dots[4 * n + 2 * r], dots[4 * n + 2 * r + 1]));
      }
      now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 1));
      now[r] = fmaxf(now[r], __shfl_xor_sync(~0u, now[r], 2));
    }
  }

  // Dots to weights, rounded to bf16 for the product; the sums keep them unrounded.
  __device__ void weigh(Weights& weights) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float base = base_of(largest[r]) * scale;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float a = exp2_approximately(fmaf(dots[4 * n + 2 * r], scale, -base));
        const float b = exp2_approximately(fmaf(dots[4 * n + 2 * r + 1], scale, -base));
        sums[r] += a + b;
        weights[n / 2][n % 2 * 2 + r] = ptx::as_bits(__floats2bfloat162_rn(a, b));
      }
    }
  }

  __device__ void share(const Weights& weights) {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      shared.weights[k][thread] = {weights[k][0], weights[k][1], weights[k][2], weights[k][3]};
    }
    shared.summary[thread] = {largest[0], largest[1], sums[0], sums[1]};
    arrive(shared.ready[group][warp]);
  }

  // --- values: out [64 heads, 256 columns] += weights [64, 64 keys] v ---

  __device__ void multiply_values(const Weights& weights, uint64_t v_tiles) {
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      ptx::Wgmma<bf16, kHalf, 1>::run(values, weights[k], ptx::further(v_tiles, k * 16 * 128), 1);
    }
    ptx::wgmma_commit();
  }

  // Starts on a tile of the other group.
  __device__ void add_other_tile(uint32_t tile) {
    shared.ready[1 - group][warp].wait(phase(tile));
    const float4 summary = shared.summary[thread];
    const float now[2] = {summary.x, summary.y};
    shrink_values(move_sums(now));
    others[0] = summary.z;
    others[1] = summary.w;
    Weights weights;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      const uint4 four = shared.weights[k][thread];
      weights[k][0] = four.x, weights[k][1] = four.y, weights[k][2] = four.z,
      weights[k][3] = four.w;
    }
    multiply_values(weights, other_v_tiles);
  }

  // Weights and values of this group's tile, whose dots are there.
  __device__ void add_own_tile() {
    mask_dots();
    float now[2];
    find_largest(now);
    const float2 shrink = move_sums(now);
    Weights weights;
    weigh(weights);
    share(weights);
    // Mostly there is nothing to do: the largest dot seldom changes.
    if (__any_sync(~0u, shrink.x != 1.f || shrink.y != 1.f)) shrink_values(shrink);
    multiply_values(weights, own_v_tiles);
    ptx::wgmma_wait<0>();
    ptx::wgmma_results(values);
    arrive(shared.free[group][group]);
  }

  // The dots of this group's tile are there.
  __device__ void release_keys(bool last) {
    ptx::wgmma_wait<0>();
    ptx::wgmma_results(dots);
    if (Shared<kPieces>::kRope) arrive(shared.free[group][2]);
    if (last) arrive(shared.q_free);
  }

  // A tile of the other group is added.
  __device__ void release_other_tile() {
    ptx::wgmma_results(values);
    arrive(shared.free[1 - group][group]);
  }

  // All tiles of a query; the first is `first`.
  __device__ void attend(uint32_t first, int tiles, uint32_t use) {
    start_query();
    int i = static_cast<int>(first % 2) ^ group;
    if (i < tiles) {
      shared.q_full.wait(use % 2);
    } else {
      arrive(shared.q_free);
    }
    if (i == 0) {
      multiply_keys<0, kParts>(first);
      release_keys(tiles <= 2);
      add_own_tile();
      i = 2;
    }
    for (; i < tiles; i += 2) {
      const uint32_t tile = first + i;
      multiply_keys<0, 2>(tile);
      add_other_tile(tile - 1);
      multiply_keys<2, 3>(tile);
      ptx::wgmma_wait<1>();
      release_other_tile();
      multiply_keys<3, kParts>(tile);
      release_keys(i + 2 >= tiles);
      add_own_tile();
    }
    if (i == tiles) {
      add_other_tile(first + tiles - 1);
      ptx::wgmma_wait<0>();
      release_other_tile();
    }
  }

  // --- the end of a query ---

  __device__ void store(const Inputs& in, const Item& item, float* out) const {
    store_rows(in, item, out, [&](float* to, int r, float factor) {
      if (to == nullptr) return;
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n) {
        const float* pair = values + 4 * n + 2 * r;
        *reinterpret_cast<float2*>(to + 8 * n + 2 * (lane % 4)) = {pair[0] * factor,
                                                                   pair[1] * factor};
      }
    });
  }

  // Four lanes have 2 columns each of every 8; after a transposition each has all of every fourth.
  __device__ void store(const Inputs& in, const Item& item, bf16* out) const {
    store_rows(in, item, out, [&](bf16* to, int r, float factor) {
#pragma unroll
      for (int n = 0; n < kHalf / 8; n += 4) {
        uint32_t four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = values + 4 * (n + i) + 2 * r;
          four[i] = ptx::as_bits(__floats2bfloat162_rn(pair[0] * factor, pair[1] * factor));
        }
        swap_among_lanes(four, 1);
        swap_among_lanes(four, 2);
        if (to == nullptr) continue;
        *reinterpret_cast<uint4*>(to + 8 * n + 8 * (lane % 4)) = {four[0], four[1], four[2],
                                                                  four[3]};
      }
    });
  }

 private:
  // One of the two rounds of a 4 x 4 transposition.
  __device__ void swap_among_lanes(uint32_t (&four)[4], int step) const {
    const bool high = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & step) != 0) continue;
      const uint32_t got = __shfl_xor_sync(~0u, high ? four[i] : four[i + step], step);
      (high ? four[i] : four[i + step]) = got;
    }
  }

  // Calls row(where this group's columns go, or null, which of two rows, what to multiply with).
  template <class Out, class Row>
  __device__ void store_rows(const Inputs& in, const Item& item, Out* out, const Row& row) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = item.first_head + 16 * warp + 8 * r + lane / 4;
      float sum = sums[r] + others[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const bool exists = head < in.heads;
      const bool writes = exists && group == 0 && lane % 4 == 0;
      const float factor = finish(in, item, exists ? head : 0, largest[r], sum, writes);
      Out* to = out + item.request * in.out_at.request + item.query * in.out_at.query +
                head * in.out_at.head + group * kHalf;
      row(exists ? to : nullptr, r, factor);
    }
  }

  __device__ static int64_t place(const Strides& at, const Item& item, int head) {
    return item.request * at.request + item.query * at.query + head * at.head;
  }

  // What a head's values are multiplied with; no valid row: largest is -inf.
  __device__ static float finish(const Inputs& in, const Item& item, int head, float largest,
                                 float sum, bool writes) {
    const bool any = largest > -INFINITY;
    const float top = in.scale * largest;
    if (writes && in.lse != nullptr) {
      in.lse[place(in.lse_at, item, head)] = any ? top + logf(sum) : INFINITY;
    }
    if (writes && in.max_logits != nullptr) {
      in.max_logits[place(in.max_at, item, head)] = any ? top : -INFINITY;
    }
    if (!any || !in.normalized) return any ? 1.f : 0.f;
    return 1.f / (in.sink == nullptr ? sum : sum + expf(in.sink[head] - top));
  }
};

template <int kPieces, class Out>
__device__ void consume(const Inputs& in, Shared<kPieces>& shared) {
  Attend<kPieces> attend(shared, in.scale);
  uint32_t tile = 0, use = 0;
  for (int64_t index = blockIdx.x; index < in.num_items(); index += gridDim.x, ++use) {
    const Item item(in, index);
    const int tiles = item.tiles();
    attend.attend(tile, tiles, use);
    attend.store(in, item, static_cast<Out*>(in.out));
    tile += tiles;
  }
}

}  // namespace dsv4::sm90_bf16
