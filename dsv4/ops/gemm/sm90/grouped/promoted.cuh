// The main loop of the grouped kernel with e4m3 operands: sums of 128 image rows x kN columns of a
// tile over K. Tensor cores keep about 14 bits of a sum of e4m3 products, and Q8 has a scale for
// 128 columns, so the products of a step (128 columns) are added to f32 sums times the factors of
// the step, which come with its rows of x'.
//
// Warp w of the consumers multiplies strip w of the pass, so a warpgroup has a block of 64 rows. A
// row has an even number of units: a branch for the last one would serialize the products (C7520).
// While the tensor cores work on a step, the warps decode the next one; then they add its products
// to the sums, while those of the other warpgroup run.
//
// Registers at kN = 128: 64 sums, 64 products of a step, 32 of A (two steps), 8 codes, 2 words of
// scales, 4 of the table, addresses.

#pragma once

#include "dsv4/ops/gemm/sm90/grouped/consumer.cuh"

namespace dsv4::gemm::grouped {

// The strip of the item whose rows this warp has in a pass.
__device__ inline int strip_of_pass(int pass) {
  return pass * kConsumerWarps + static_cast<int>(threadIdx.x) / kWarp;
}

// sums[4 n + i] += part[4 n + i] * factor of column 8 n + 2 (lane % 4) + i % 2
template <int kN>
__device__ void promote(float (&part)[kN / 2], const unsigned char* step, float (&sums)[kN / 2]) {
  ptx::wgmma_fence_operand(part);
  const auto* const factors =
      reinterpret_cast<const float*>(step + kN * kSwizzledBytes) + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    const float2 two = *reinterpret_cast<const float2*>(factors + 8 * n);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[4 * n + i] = fmaf(part[4 * n + i], i % 2 == 0 ? two.x : two.y, sums[4 * n + i]);
  }
}

// Two units along K. All products are done at the end: ptxas waits for each by itself where
// accumulators in flight cross the back edge of a loop (C7514).
template <int kN, class Weights>
__device__ void add_units(const typename Weights::Table& table, Shared<Weights>& shared, Place& at,
                          float (&sums)[kN / 2]) {
  constexpr int kSteps = kUnitsAtOnce * steps_of_unit(XForm::kE4m3);
  float part[kN / 2];
  uint32_t a[2][4][4];
  Weights unit;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  int previous = 0;  // the stage of x of the step before
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % 2 == 0) shared.code_full[at.codes.stage].wait(at.codes.phase);
    unit.load(shared.codes[at.codes.stage] + warp * Weights::kSlabBytes, step % 2);
    unit.decode(table, a[step % 2]);
#pragma unroll
    for (auto& fragment : a[step % 2]) ptx::wgmma_fence_operand(fragment);
    if (step % 2 == 1) {
      __syncwarp();  // all lanes have read the codes
      arrive_once(shared.code_empty[at.codes.stage]);
      at.codes.next(Shared<Weights>::kCodeStages);
    }
    shared.x_full[at.x.stage].wait(at.x.phase);
    if (step > 0) {
      ptx::wgmma_wait_group<0>();
      promote<kN>(part, shared.x[previous], sums);
    }
    const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(shared.x[at.x.stage]));
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      ptx::Wgmma<typename Weights::Operand, kN>::run(
          part, a[step % 2][i], ptx::advance_desc(x, static_cast<uint32_t>(32 * i)), i != 0);
    ptx::wgmma_commit_group();
    if (step > 0) {
      __syncwarp();  // all lanes have read the factors
      arrive_once(shared.x_empty[previous]);
    }
    previous = at.x.stage;
    at.x.next(Shared<Weights>::kXStages);
  }
  ptx::wgmma_wait_group<0>();
  promote<kN>(part, shared.x[previous], sums);
  __syncwarp();
  arrive_once(shared.x_empty[previous]);
}

template <int kN, class Weights>
__device__ void multiply_promoted(int chunks, const typename Weights::Table& table,
                                  Shared<Weights>& shared, Place& at, float (&sums)[kN / 2]) {
#pragma unroll
  for (float& sum : sums) sum = 0;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; chunk += kUnitsAtOnce) add_units<kN>(table, shared, at, sums);
}

// Stages the sums of a pass times factors, in bf16; low, high: the factors of rows g and g + 8 of
// all strips.
template <int kN, class Weights>
__device__ void stage_pass(int pass, float low, float high, const float (&sums)[kN / 2],
                           Shared<Weights>& shared, Place& at) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const factors = shared.factors[at.items % Shared<Weights>::kFactors] + lane % 4 * 2;
  const int vector = 2 * strip_of_pass(pass) + lane / 8 % 2;
  if (pass == 0) shared.staging_empty.wait((at.items + 1) % 2);
#pragma unroll
  for (int n = 0; n < kN / 8; n += 2) {
    uint32_t four[4];  // rows g, g + 8 of columns 8 n .. 8 n + 7, then of the next eight
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = *reinterpret_cast<const float2*>(factors + 8 * (n + i / 2));
      const float factor = i % 2 == 0 ? low : high;
      const float* const from = sums + 4 * (n + i / 2) + i % 2 * 2;
      four[i] = ptx::pack_bf16x2(from[0] * (two.x * factor), from[1] * (two.y * factor));
    }
    const int column = 8 * (n + lane / 16) + lane % 8;
    ptx::stmatrix_x4_trans(ptx::smem_address(shared.staging + staged_at(column, vector)), four);
  }
  if (pass == 0) return;
  __syncwarp();
  arrive_once(shared.staging_full);
  ++at.items;
}

}  // namespace dsv4::gemm::grouped
