// The main loop of the grouped kernel with operands of 16 bits: sums of 256 image rows x kN columns
// of a tile over K, and what the consumers do with them: a fragment has neighboring columns of one
// row, and the epilogue wants neighboring rows of one column, so a transposing stmatrix stages
// them.
//
// Warp w of consumer warpgroup j multiplies the strips 8 j + w and 8 j + 4 + w of the item: two
// blocks of 64 rows for the warpgroup. While the tensor cores work on a step (64 values of K) of
// one block, the warps decode the next step of the other.
//
// Registers at kN = 128: 128 sums, 32 of A (two blocks), 8 to 12 codes, scales, table, addresses.

#pragma once

#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::gemm::grouped {

inline constexpr int kBlocks = 2;  // of 64 rows, for each warpgroup

// Sums of rows g and g + 8 of a strip in block b: sums[b][4 n + i] is row g + i / 2 * 8, column
// 8 n + 2 (lane % 4) + i % 2.
template <int kN>
using Sums = float[kBlocks][kN / 2];

// The strip of the item whose rows this warp has in block b.
__device__ inline int strip_of(int b) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  return warp / 4 * 8 + 4 * b + warp % 4;
}

__device__ inline void arrive_once(ptx::Mbarrier& barrier) {
  if (threadIdx.x % kWarp == 0) barrier.arrive();
}

// Where a consumer is in the two rings.
struct Place {
  sm90::RingCursor codes, x;
  int items = 0;  // done
};

template <int kN, class Weights>
__device__ void multiply(int chunks, const typename Weights::Table& table, Shared<Weights>& shared,
                         Place& at, Sums<kN>& sums) {
  constexpr int kSteps = steps_of_unit(kXForm<Weights>), kAtOnce = Shared<Weights>::x_steps(kN);
  constexpr int kStepBytes = step_bytes(kXForm<Weights>, kN);
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(shared.x));
  uint32_t a[kBlocks][4][4];
  Weights unit[kBlocks];
  int before = 0;  // the stage of x of the steps before
#pragma unroll
  for (int b = 0; b < kBlocks; ++b)
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[b][i] = 0;

#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int stage = at.codes.stage;
    shared.code_full[stage].wait(at.codes.phase);
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        unit[b].load(shared.codes[stage] + strip_of(b) * Weights::kSlabBytes, j);
        ptx::wgmma_wait_group<1>();  // this block's products of the step before are done
        if (b == 1 && j % kAtOnce == 0 && (j > 0 || chunk > 0))
          arrive_once(shared.x_empty[before]);  // of both blocks, then
        unit[b].decode(table, j, a[b]);
        if (b == 0 && j % kAtOnce == 0) shared.x_full[at.x.stage].wait(at.x.phase);
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i)
          ptx::Wgmma<typename Weights::Operand, kN>::run(
              sums[b], a[b][i],
              ptx::advance_desc(x, static_cast<uint32_t>(at.x.stage * Shared<Weights>::kXBytes +
                                                         j % kAtOnce * kStepBytes + 32 * i)),
              1);
        ptx::wgmma_commit_group();
      }
      if (j % kAtOnce < kAtOnce - 1) continue;
      before = at.x.stage;
      at.x.next(Shared<Weights>::kXStages);
    }
    __syncwarp();  // all lanes have read the codes
    arrive_once(shared.code_empty[stage]);
    at.codes.next(Shared<Weights>::kCodeStages);
  }
  ptx::wgmma_wait_group<0>();
  arrive_once(shared.x_empty[before]);
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) ptx::wgmma_fence_operand(sums[b]);
}

// Stages sums times factors, in bf16; low, high: the factors of rows g and g + 8 of all strips.
template <int kN, class Weights>
__device__ void stage(float low, float high, const Sums<kN>& sums, Shared<Weights>& shared,
                      Place& at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const factors = shared.factors[at.items % Shared<Weights>::kFactors] + lane % 4 * 2;
  const int vector = 2 * strip_of(lane / 16) + lane / 8 % 2;
  shared.staging_empty.wait((at.items + 1) % 2);
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    const float2 two = *reinterpret_cast<const float2*>(factors + 8 * n);
    uint32_t four[4];  // rows g, g + 8 of block 0, then of block 1
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = i % 2 == 0 ? low : high;
      const float* const from = sums[i / 2] + 4 * n + i % 2 * 2;
      four[i] = ptx::pack_bf16x2(from[0] * (two.x * factor), from[1] * (two.y * factor));
    }
    const int column = 8 * n + lane % 8;
    ptx::stmatrix_x4_trans(ptx::smem_address(shared.staging + staged_at(column, vector)), four);
  }
  __syncwarp();
  arrive_once(shared.staging_full);
  ++at.items;
}

}  // namespace dsv4::gemm::grouped
