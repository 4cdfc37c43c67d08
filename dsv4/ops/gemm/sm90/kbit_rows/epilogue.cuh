// The sums of a round: shares of K are added in order over the warpgroups of a CTA and the CTAs of
// its cluster, multiplied with the factor of the matrix, rounded and stored. A rank has a part of
// the outputs.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/multiply.cuh"

namespace dsv4::gemm::kbit_rows {

// A barrier of the cluster: what its threads wrote before is seen after it.
__device__ inline void sync_ranks(const Plan& plan) {
  if (plan.ranks == 1) return __syncthreads();
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

template <int N>
__device__ void keep_sums(const Plan& plan, const Memory& memory, const Share& share,
                          const Sums<N>& sums) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads, lane = thread % kWarp;
  const int row = share.row_group * kGroupRows + thread / kWarp * 16 + lane / 4;
  float* const to = memory.sums() + share.k_group * plan.cells * memory.at.sums_pitch;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (column < plan.cells)
      to[column * memory.at.sums_pitch + row + i / 2 % 2 * 8] = sums[0][i] + sums[1][i];
  }
}

__device__ inline float add_shares(const Plan& plan, const float* first, int k_stride) {
  float sum = 0;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    for (int k = 0; k < plan.k_groups(); ++k) {
      const float* const from = first + k * k_stride;
      sum += plan.ranks == 1
                 ? *from
                 : __uint_as_float(ptx::cluster_load(reinterpret_cast<const uint32_t*>(from),
                                                     static_cast<uint32_t>(rank)));
    }
  }
  return sum;
}

__device__ inline void store(const Params& p, int64_t at, float value) {
  if (p.out_dtype == DType::kF32) {
    static_cast<float*>(p.out)[at] = value;
  } else if (p.out_dtype == DType::kF16) {
    static_cast<f16*>(p.out)[at] = from_float<f16>(value);
  } else {
    static_cast<bf16*>(p.out)[at] = from_float<bf16>(value);
  }
}

// unit: of the sums
__device__ inline void store_round(const Params& p, const Memory& memory, const Share& share,
                                   int round, int first_token, int tokens, float unit) {
  const Plan& plan = p.plan;
  const int rows = plan.row_groups * plan.rows, pitch = memory.at.sums_pitch;
  const int first = share.first_row(plan, round, 0);
  for (int i = static_cast<int>(threadIdx.x) + kThreads * share.rank; i < rows * tokens;
       i += kThreads * plan.ranks) {
    const int row = i % rows, token = i / rows;
    if (first + row >= p.n) continue;
    const int local = row / plan.rows * kGroupRows + row % plan.rows;
    const float sum = add_shares(plan, memory.sums() + token * pitch + local, plan.cells * pitch);
    store(p, (first_token + token) * p.out_stride + first + row, sum * (unit * p.scale2));
  }
}

}  // namespace dsv4::gemm::kbit_rows
