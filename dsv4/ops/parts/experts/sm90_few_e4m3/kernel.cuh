// The products of routed experts for few tokens, on Hopper, for codebooks on the e4m3 grid and FP4:
// what sm90_few computes, with fewer instructions for a weight.
//
// Problem    as in sm90_few/kernel.cuh; a codebook value is an e4m3 number times a power of two
// Bound      the bytes of the weights of the experts that are chosen; the second limit is the ALU:
//            one byte permute finds four codes, 0.53 instructions a weight at K = 3
// Tiles      an item is 64 rows of one entry (up to 8 pairs of one expert, 4 of NVFP4) and all
//            columns, in steps of 1,024; weights are A of wgmma m64n8k32 in registers, Q8 codes B
// Roles      warps 0 - 15 math: warp w of warpgroup j has 16 rows and the columns 256 j .. + 255 of
//            each step | warps 16, 17: epilogue, 32 rows each | warp 18, one lane: producer
// Barriers   full[stage]     1    producer and the copies' bytes | math warps
//            empty[stage]    16   math warps, after the unit is in registers | producer
//            named 1, 2      576  math warps, partial sums of buffer 0, 1 stored | epilogue warps
//            named 3 .. 6    128  warpgroup j, activations of the entry before read; stored
//            drained[buffer] 64   epilogue warps | math warps
// Registers  104 of math warps, 64 of the others, no spills
// Smem       activations 32 KB, ring of 4 (NVFP4), 5 (K = 4, MXFP4) to 9 (K = 2) stages of 18 to 36
//            KB, partial sums 16 KB; instances for wide rows: 56 KB, 4 to 8 stages
//
// One CTA an SM. Order of additions, for every batch and grid: blocks of 32 columns (NVFP4: 16) by
// the tensor core, which keeps 13 fractional bits; then in f32 the blocks of a warpgroup that have
// the same place in their groups of 128, the places, the warpgroups. Entries of few pairs need
// fewer accumulators for it (x/pair_columns.cuh).
//
// gate_up lets down start when it has waited itself, so the list of pairs is complete then: down
// copies weights before it waits for h. Where down is a call of its own (Params::waits_first),
// whatever came before it may still be under way.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/own_list.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/producer.cuh"

namespace dsv4::experts_kernel::sm90_few_e4m3 {

using namespace gemm::experts_e4m3;

// kColumns: of x, at most
template <int K, ImageScale kScale, bool kGateUp, int kColumns>
__global__ void __launch_bounds__(kThreads, 1) few_kernel(const __grid_constant__ Params p) {
  using S = SharedOf<K, kScale, kColumns>;
  static_assert(sizeof(S) <= sm90::kMaxSmem);
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  init_barriers(shared);
  if (kGateUp || p.waits_first) ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const bool own_list = p.choices.pairs > 0;
  if (own_list) {
    if (warp == 0) list_own(p.choices, blockIdx.x == 0 ? p.pair_of : nullptr, shared.own);
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
  if (warp == kProducerWarp && threadIdx.x % kWarp == 0) produce(p, range, shared);
  if constexpr (!kGateUp) ptx::griddepcontrol_wait();
  if (warp < kProducerWarp)
    finish<kGateUp>(p, range, own_list ? shared.own.weight : p.pair_weight, shared);
}

}  // namespace dsv4::experts_kernel::sm90_few_e4m3
