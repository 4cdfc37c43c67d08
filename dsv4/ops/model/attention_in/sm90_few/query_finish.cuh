// The last steps of the queries of many tokens, whose products gemm/sm90/large_m stores in bf16,
// with the bits of query_epilogue.cuh: head norm and RoPE by the kernel of heads.cuh, and RoPE,
// Hadamard and S4 of indexer heads. Both in place.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/model/attention_in/heads.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/query_params.cuh"
#include "dsv4/ops/parts/quant/lanes.cuh"

namespace dsv4::attention_in_kernel::query {

// The order of send_squares() and normalize_rows(). A lane has the rows of a warp there: rows g and
// g + 8, a butterfly over g; then eight warps of a rank in order, then ranks in order.
struct SumOfRanks {
  static __device__ float of(const float (&squares)[attention_in_kernel::kLaneColumns]) {
    constexpr int kLanes = kWarp / kRanks;  // of a rank
    static_assert(attention_in_kernel::kLaneColumns == 16 && kLanes == kConsumerWarps);
    float v[8];
#pragma unroll
    for (int g = 0; g < 8; ++g) v[g] = squares[g] + squares[g + 8];
    const float of_warp = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    const int first = static_cast<int>(threadIdx.x) % kWarp / kLanes * kLanes;
    float of_rank = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kLanes; ++w) of_rank += __shfl_sync(~0u, of_warp, first + w);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) sum += __shfl_sync(~0u, of_rank, rank * kLanes);
    return sum;
  }
};

struct IndexHeadParams {
  bf16* q;  // [n, heads, kIndexWidth], contiguous
  int heads;
  const float2* rotations;  // [n, kPairs] cos and sin
  float factor;             // of the Hadamard transform
};

inline constexpr int kIndexHeadWarps = 8;

// grid: [n]. A warp takes every eighth head.
__global__ void __launch_bounds__(kIndexHeadWarps* kWarp)
    finish_index_heads_kernel(const IndexHeadParams p) {
  ptx::pdl_start();
  constexpr int kPer = kIndexWidth / kWarp, kFirst = (kIndexWidth - kRotated) / kPer;
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  float2 rotation[kPer / 2] = {};  // of the lane's columns, the second half of the lanes
  if (lane >= kFirst) {
#pragma unroll
    for (int i = 0; i < kPer / 2; ++i)
      rotation[i] = p.rotations[int64_t{blockIdx.x} * kPairs + (lane - kFirst) * (kPer / 2) + i];
  }
  bf16* const token = p.q + int64_t{blockIdx.x} * p.heads * kIndexWidth + lane * kPer;
  for (int head = warp; head < p.heads; head += kIndexHeadWarps) {
    float v[kPer];
    load<kPer>(token + head * kIndexWidth, v);
    if (lane >= kFirst) {
#pragma unroll
      for (int i = 0; i < kPer; i += 2) {
        const float2 turned = rotate({v[i], v[i + 1]}, rotation[i / 2]);
        v[i] = bf16_step(turned.x), v[i + 1] = bf16_step(turned.y);
      }
    }
    hadamard_s4_in_lanes(v, p.factor, IndexLayoutFp4::kGroup, lane);
    store<kPer>(token + head * kIndexWidth, v);
  }
}

}  // namespace dsv4::attention_in_kernel::query
