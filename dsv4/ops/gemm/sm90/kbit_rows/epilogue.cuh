// The sums of a round: shares of K are added in order over the warpgroups of a CTA and the CTAs of
// its cluster, multiplied with the factor of the matrix, rounded and stored. A rank has a part of
// the outputs.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/block_codes.cuh"

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
  const int sharing = plan.warps_of_rows(), warp_row = thread / kWarp * 16;
  const int of_sharing = warp_row / plan.sums_rows();
  const int row = share.row_group * plan.sums_rows() + warp_row % plan.sums_rows() + lane / 4;
  float* const to =
      memory.sums() + (share.k_group * sharing + of_sharing) * plan.cells * memory.at.sums_pitch;
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
    for (int k = 0; k < plan.k_groups() * plan.warps_of_rows(); ++k) {
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

template <int kCells>
__device__ void store_round(const Params& p, const Memory& memory, const Share& share, int round) {
  const int first_token = static_cast<int>(blockIdx.y) * kCells;
  const int tokens = min(kCells, p.tokens - first_token);
  const Plan& plan = p.plan;
  const float factor = memory.unit() * p.scale2;
  const int pitch = memory.at.sums_pitch, first = share.first_row(plan, round, 0);
  const int of_first = share.first_row(plan, round, 1) - first;  // rows of the first row group
  const int rows = share.first_row(plan, round, plan.row_groups) - first;
  for (int i = static_cast<int>(threadIdx.x) + kThreads * share.rank; i < rows * tokens;
       i += kThreads * plan.ranks) {
    const int row = i % rows, token = i / rows;
    const int local = row < of_first ? row : plan.sums_rows() + row - of_first;
    const float sum = add_shares(plan, memory.sums() + token * pitch + local, plan.cells * pitch);
    store(p, (first_token + token) * p.out_stride + first + row, sum * factor);
  }
}

}  // namespace dsv4::gemm::kbit_rows
