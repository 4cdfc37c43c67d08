// What query_kernel.cuh does with the products of a CTA: 128 rows of a weight, which are a quarter
// of a query head or an indexer head. Registers are as wgmma leaves them: with g = lane / 4 and
// j = lane % 4, warp w of a consumer group has rows 16 w + g and 16 w + g + 8 of its tile, tokens
// 8 n + 2 j and 8 n + 2 j + 1.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/ops/model/attention_in/bf16_step.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_latent.cuh"
#include "dsv4/ops/parts/quant/lanes.cuh"
#include "dsv4/ops/parts/rope/rotation.cuh"

namespace dsv4::attention_in_kernel::query {

// The registers of a thread. Values are f32 with the bits of bf16 once rounded.
template <class C>
struct Products {
  float value[C::kSums];

  // visit(value, row of the tile, token)
  template <class Visit>
  __device__ void for_each(int thread, const Visit& visit) {
    const int row = thread / kWarp % 4 * 16 + thread % kWarp / 4;
#pragma unroll
    for (int i = 0; i < C::kSums; ++i)
      visit(value[i], row + i / 2 % 2 * 8, i / 4 * 8 + thread % 4 * 2 + i % 2);
  }
};

// cos and sin of every token, for the CTAs of the cluster that rotate: from `first` on. Every CTA
// computes those of some tokens, a warp of it, or loads stored ones, and sends them.
template <class C>
__device__ void send_rotations(const Params& p, const Memory<C>& memory, int rank, int first,
                               int end) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto send = [&](int token, float2 rotation) {
    for (int to = first; to < end; ++to)
      ptx::st_async(reinterpret_cast<uint2*>(memory.rotation() + token * kPairs + lane),
                    static_cast<uint32_t>(to),
                    {__float_as_uint(rotation.x), __float_as_uint(rotation.y)}, memory.rotated());
  };
  if constexpr (C::kStreamsX) {
#pragma unroll 4
    for (int token = rank; token < p.tokens; token += kRanks)
      send(token, p.rotations[token * kPairs + lane]);
  } else {
    const float freq = p.freqs[lane];
    for (int token = rank; token < p.tokens; token += kRanks)
      send(token, rotation_of(static_cast<float>(p.positions[token]), freq, false));
  }
}

// Rows of the second tile of the last CTA of a head: the 64 columns that rotate. A pair is rows of
// neighboring g. The second consumer group.
template <class C>
__device__ void rotate_rows(const Memory<C>& memory, Products<C>& products, int thread) {
  memory.rotated().wait_acquire_cluster(0);
  products.for_each(thread, [&](float& value, int row, int token) {
    const float other = __shfl_xor_sync(~0u, value, 4);
    const bool second = row % 2 != 0;
    const float2 turned = rotate(second ? float2{other, value} : float2{value, other},
                                 memory.rotation()[token * kPairs + row / 2]);
    value = bf16_step(second ? turned.y : turned.x);
  });
}

// The sums of squares of this CTA's rows, to all ranks.
template <class C>
__device__ void send_squares(const Memory<C>& memory, const Products<C>& products, int rank,
                             int thread) {
  const int warp = thread / kWarp, lane = thread % kWarp;
#pragma unroll
  for (int n = 0; n < C::kSummed / 8; ++n) {
    const float* v = products.value + 4 * n;
    float2 sum{bf16_step(v[0] * v[0]) + bf16_step(v[2] * v[2]),
               bf16_step(v[1] * v[1]) + bf16_step(v[3] * v[3])};
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, step);
      sum.y += __shfl_xor_sync(~0u, sum.y, step);
    }
    if (lane < 4)
      *reinterpret_cast<float2*>(memory.squares() + warp * C::kSummed + 8 * n + 2 * lane) = sum;
  }
  sync_consumers();
  constexpr int kTokenPairs = C::kSummed / 2;
  if (thread >= kRanks * kTokenPairs) return;
  const int to = thread / kTokenPairs, token = thread % kTokenPairs * 2;
  float2 sum{};
#pragma unroll
  for (int w = 0; w < kConsumerWarps; ++w) {
    const float2 part = *reinterpret_cast<const float2*>(memory.squares() + w * C::kSummed + token);
    sum.x += part.x, sum.y += part.y;
  }
  ptx::st_async(reinterpret_cast<uint2*>(memory.exchange() + rank * C::kSummed + token),
                static_cast<uint32_t>(to), {__float_as_uint(sum.x), __float_as_uint(sum.y)},
                memory.exchanged());
}

// RMS0_bf16 of docs/spec/dsv4.md 0.4, from the sums of all ranks.
template <class C>
__device__ void normalize_rows(const Params& p, const Memory<C>& memory, Products<C>& products,
                               int thread) {
  memory.exchanged().wait_acquire_cluster(0);
#pragma unroll
  for (int n = 0; n < C::kSummed / 8; ++n) {
    float sums[2] = {};
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      const float2 part = *reinterpret_cast<const float2*>(memory.exchange() + rank * C::kSummed +
                                                           8 * n + thread % 4 * 2);
      sums[0] += part.x, sums[1] += part.y;
    }
    // Only of tokens that exist: a root and a reciprocal take 200 clocks.
    float roots[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (8 * n + i >= p.tokens) break;
      const float mean = bf16_step(sums[i] / static_cast<float>(kHeadWidth));
      roots[i] = bf16_step(1.f / sqrtf(bf16_step(mean + p.norm_eps)));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      products.value[4 * n + i] = bf16_step(products.value[4 * n + i] * roots[i % 2]);
  }
}

// Head norm, RoPE, and the store of a quarter of a head. All consumers.
template <class C>
__device__ void finish_head(const Params& p, const Memory<C>& memory, Products<C>& products,
                            int head, int rank, int thread) {
  send_squares(memory, products, rank, thread);
  normalize_rows(p, memory, products, thread);
  const int group = thread / (kConsumers / 2);
  if (rank == kRanks - 1 && group == 1) rotate_rows(memory, products, thread);
  bf16* const out = p.out + head * kHeadWidth + rank * kRows + group * gemm::kTileRows;
  products.for_each(thread, [&](float value, int row, int token) {
    if (token < p.tokens)
      out[int64_t{token} * p.q.heads * kHeadWidth + row] = from_float<bf16>(value);
  });
}

// RoPE, Hadamard and S4 of an indexer head. A warp has a token in the end, a lane 4 columns. All
// consumers, after all of them have multiplied: the ring is used again.
template <class C>
__device__ void finish_index_head(const Params& p, const Memory<C>& memory, Products<C>& products,
                                  int head, int thread) {
  constexpr int kPitch = kIndexWidth + 4, kPer = kIndexWidth / kWarp;
  static_assert(C::kSummed * kPitch * 4 <= kMinStages * C::kStage);
  float* const rows = reinterpret_cast<float*>(memory.base);  // [kSummed][kPitch]
  const int group = thread / (kConsumers / 2);
  if (group == 1) rotate_rows(memory, products, thread);
  sync_consumers();
  products.for_each(thread, [&](float value, int row, int token) {
    rows[token * kPitch + group * gemm::kTileRows + row] = value;
  });
  sync_consumers();
  const int lane = thread % kWarp;
  for (int token = thread / kWarp; token < p.tokens; token += kConsumerWarps) {
    float v[kPer];
    load<kPer>(rows + token * kPitch + lane * kPer, v);
    hadamard_s4_in_lanes(v, p.index_factor, IndexLayoutFp4::kGroup, lane);
    store<kPer>(p.index_out + (int64_t{token} * p.index.heads + head) * kIndexWidth + lane * kPer,
                v);
  }
}

}  // namespace dsv4::attention_in_kernel::query
