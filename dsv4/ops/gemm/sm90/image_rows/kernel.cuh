// The kernel of image_rows.h.
//
// Problem    h[m] = gated step of w1_e x[m] and w3_e x[m], or out[m] = w_e x[m]: rows of x in bf16,
//            each with a matrix e, times kernel images whose codebook is on the e4m3 grid, or FP4
// Bound      the bytes of the images; the second limit is the ALU, which decodes them
// Tiles      an item is 64 rows of images (32 of gate and 32 of up) of an entry, up to 4 rows of x
//            of one matrix (NVFP4: 2), and all columns, in steps of 1,024; weights are A of wgmma
//            m64n8k32 in registers, the two terms of each row of x (x/rows_of_experts.cuh) B
// Roles, barriers, registers    those of experts_e4m3 (parts/experts/sm90_few_e4m3/kernel.cuh)
// Smem       activations 32 or 64 KB, ring of 3 to 9 stages, partial sums 16 KB
//
// One CTA an SM. Weights are exact and so is x but for tiny numbers beside large ones, so the only
// roundings are those of the tensor core, which keeps 13 fractional bits of a sum of 32 columns
// (NVFP4: 16), of f32, and of h and out. Order of additions, for every batch and grid: that of
// experts_e4m3 for each term, then the second term is added to the first.
//
// gate_up lets the next kernel start when it has waited itself, so the list of pairs is complete
// then: down copies weights before it waits for h. A dense product has no list, and copies at once.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/own_list.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/producer.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/producer.cuh"

namespace dsv4::gemm::image_rows {

// The shared memory of experts_e4m3 with two columns for a row of x. kColumns: of x, at most. A
// wide x leaves room for fewer stages.
template <int K, ImageScale kScale, int kColumns>
using SharedOf = experts_e4m3::Shared<K, kScale, kColumns / experts_e4m3::kQ8Group,
                                      experts_e4m3::OwnList, 3072 + kColumns / 4, kTerms>;
static_assert(kItemStrips == experts_e4m3::kStrips && kOwnEntries == experts_e4m3::kOwnPairs);

// The entries of a dense product, by one warp.
__device__ inline void list_rows(const Params& p, experts_e4m3::OwnList& to) {
  const int i = static_cast<int>(threadIdx.x) % kWarp, most = 1 << p.choices.entry_bits;
  if (i == 0) to.count = (p.dense_rows + most - 1) / most;
  if (i * most >= p.dense_rows) return;
  to.entries[i] = {
      .expert = 0, .first_pair = i * most, .pairs = min(most, p.dense_rows - i * most)};
}

// kColumns: of x, at most
template <int K, ImageScale kScale, bool kGateUp, int kColumns>
__global__ void __launch_bounds__(experts_e4m3::kThreads, 1)
    image_rows_kernel(const __grid_constant__ Params p) {
  using namespace experts_e4m3;
  using S = image_rows::SharedOf<K, kScale, kColumns>;
  static_assert(sizeof(S) <= sm90::kMaxSmem && S::kStages >= 3);
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  init_barriers(shared);
  if constexpr (kGateUp) ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool own_list = p.choices.pairs > 0 || p.dense_rows > 0;
  if (own_list) {
    if (warp == 0 && p.dense_rows > 0) list_rows(p, shared.own);
    if (warp == 0 && p.dense_rows == 0)
      list_own(p.choices, blockIdx.x == 0 ? p.pair_of : nullptr, shared.own);
    __syncthreads();
  }
  const Range range = own_list ? Range(p, shared.own.entries, shared.own.count) : Range(p);
  if (warp < kMathWarps) {
    ptx::setmaxnreg_inc<kMathRegisters>();
    if constexpr (!kGateUp) ptx::griddepcontrol_wait();
    multiply<kGateUp>(p, range, shared);
    return;
  }
  ptx::setmaxnreg_dec<kOtherRegisters>();
  if (warp == kProducerWarp && threadIdx.x % kWarp == 0) {
    if constexpr (kGateUp) {
      produce_gate_up(p, range, shared);
    } else {
      produce(p, range, shared);
    }
  }
  if constexpr (!kGateUp) ptx::griddepcontrol_wait();
  if (warp >= kProducerWarp) return;
  if constexpr (kGateUp) {
    finish_gate_up(p, range, own_list ? shared.own.weight : p.pair_weight, shared);
  } else {
    finish_rows(p, range, shared);
  }
}

}  // namespace dsv4::gemm::image_rows
