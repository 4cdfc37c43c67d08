// The consumers of a CTA: two warpgroups, each with 64 rows of the tile and all of its tokens.
//
// The order of additions is that of small_m (small_m/consumer.cuh, exchange.cuh): products of a
// slab start at zero and are added in f32 times their factor, slabs of a rank ascending; then ranks
// ascending. What is a CTA of a cluster there is a range of slabs here.

#pragma once

#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/gemm/sm90/large_m/config.cuh"
#include "dsv4/ops/gemm/weights/fp8_block.cuh"
#include "dsv4/ops/gemm/weights/plain.cuh"

namespace dsv4::gemm::large_m {

// part [64, kTokens] = weights [64, 128 columns] * x, codes converted to f16 in A registers, as
// multiply_converted() does: 64 columns at a time, since 16 registers of A are free, not 32.
__device__ inline void multiply_halves(float (&part)[kSums], uint32_t weights, uint32_t x,
                                       int thread) {
  constexpr int kSteps = 4;  // of 16 columns
  const int lane = thread % kWarp, row = lane % 16;
  const uint32_t rows = weights + (thread / kWarp * 16 + row) * kSlabBytes;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t a[kSteps][4];
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      uint32_t codes[4];  // rows g and g + 8 of 16 columns, then of the next 16
      ptx::ldmatrix_x4(codes, rows + (((half * kSteps + i + lane / 16) ^ (row % 8)) << 4));
#pragma unroll
      for (int r = 0; r < 4; ++r)
        ptx::cvt_e4m3x4_to_f16x2(codes[r], a[i + r / 2][r % 2], a[i + r / 2][r % 2 + 2]);
    }
    const uint64_t b = ptx::make_smem_desc_128B(x + half * kTokens * kSlabBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      ptx::Wgmma<f16, kTokens>::run(part, a[i], ptx::advance_desc(b, i * 32), half + i > 0);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(part);
  }
}

template <class C>
class Consumer {
 public:
  __device__ Consumer(const Params& p, Shared<C>& shared)
      : p_(p),
        shared_(shared),
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / sm90::kWarpgroup, 0)) {}

  // sums [64, kTokens] of this warpgroup, as wgmma leaves them. Tiles come in order.
  __device__ void multiply(float (&sums)[kSums]) {
    int slab = 0;
#pragma unroll 1
    for (int rank = 0; rank < 1 << p_.rank_bits; ++rank) {
      float acc[kSums];
#pragma unroll
      for (float& sum : acc) sum = 0;
      const int end = p_.slabs * (rank + 1) >> p_.rank_bits;
#pragma unroll 1
      for (; slab < end; ++slab) add_slab(acc);
      if (rank == 0) {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] = acc[i];
      } else {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] += acc[i];
      }
    }
  }

 private:
  __device__ void add_slab(float (&acc)[kSums]) {
    const uint32_t stage = ptx::smem_address(shared_.stage[at_.stage]),
                   weights = stage + group_ * kSlabSize, x = stage + C::kWeightBytes;
    shared_.full[at_.stage].wait(at_.phase);
    float part[kSums];
    if constexpr (converts_to_f16(C::kFormat)) {
      multiply_halves(part, weights, x, ptx::thread_index() % sm90::kWarpgroup);
    } else {
      using T = std::conditional_t<C::kFormat == Format::kFp8, __nv_fp8_e4m3, bf16>;
      multiply_shared<T, kTokens>(part, weights, x);
    }
    promote(part, acc);
    release();
  }

  __device__ void promote(const float (&part)[kSums], float (&acc)[kSums]) const {
    const float* const factors = shared_.factor[at_.stage] + ptx::lane_id() % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n) {
      float2 factor{1, 1};
      if constexpr (C::kScaled) factor = *reinterpret_cast<const float2*>(factors + 8 * n);
#pragma unroll
      for (int i = 4 * n; i < 4 * n + 4; i += 2) {
        acc[i] = fmaf(part[i], factor.x, acc[i]);
        acc[i + 1] = fmaf(part[i + 1], factor.y, acc[i + 1]);
      }
    }
  }

  // After the last use of what was read (docs/lessons.md): both CTAs fill the stage again.
  __device__ void release() {
    __syncwarp();
    const int lane = ptx::lane_id();
    if (lane < kCtas) shared_.empty[at_.stage].arrive_relaxed_cluster(lane);
    at_.next(C::kStages);
  }

  const Params& p_;
  Shared<C>& shared_;
  const int group_;
  sm90::RingCursor at_;
};

}  // namespace dsv4::gemm::large_m
