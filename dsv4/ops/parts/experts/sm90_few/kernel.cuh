// The products of routed experts for few tokens, on Hopper: gate and up with SwiGLU, or down.
//
// Problem    out[pair, n] = sum_k w[expert(pair), n, k] * Q8(x[row(pair), k]) for k-bit weights in
//            their kernel image (formats/kbit_image.h), gate and up interleaved by 8 rows.
//            gate_up: h = bf16(weight * swiglu(bf16(gate), bf16(up))); down: y = bf16(sum)
// Bound      the bytes of the weights of the experts that are chosen; the second limit is the ALU
//            (decode.cuh): 1.5 instructions a weight at K = 3, 42 weights a clock and SM of 47
// Tiles      a stage is 16 units of 16 rows x 256 columns, one contiguous run of the image;
//            weights are A in f16, activations B, up to 8 pairs of one expert
// Roles      warps 0 - 15 math: one unit of a stage each, B in registers for all stages of an entry
//            warps 16 - 18: epilogue of every third stage | warp 19, one lane: producer
// Barriers   full[stage]     1    producer and the copy's bytes | math warps
//            empty[stage]    16   math warps, after the unit is in registers | producer
//            named 1 .. 3    544  math warps, partial sums of buffer 0 .. 2 stored | epilogue warp
//            drained[buffer] 32   epilogue warp of the buffer | math warps
// Registers  104 of math warps, 64 of the others, no spills
// Smem       ring of 4 (K = 5) to 10 (K = 2) stages, 186 KB at K = 3; partial sums 24 KB
//
// One CTA an SM. The sum over k is that of 256-column units in ascending order, in which groups of
// 128 and blocks of 32 are summed first: bits depend neither on the other pairs nor on the grid.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/parts/experts/sm90_few/epilogue.cuh"
#include "dsv4/ops/parts/experts/sm90_few/multiply.cuh"
#include "dsv4/ops/parts/experts/sm90_few/producer.cuh"

namespace dsv4::experts_kernel::sm90_few {

template <int K>
__device__ void init_barriers(Shared<K>& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<K>::kStages; ++i)
      shared.full[i].init(1), shared.empty[i].init(kMathWarps);
    for (int i = 0; i < kBuffers; ++i) shared.drained[i].init(kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

template <int K, bool kGateUp>
__global__ void __launch_bounds__(kThreads, 1) few_kernel(const __grid_constant__ Params p) {
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<Shared<K>*>(ptx::dynamic_smem());
  gemm::fill_two_codes<K>(p.table, shared.two_codes);
  init_barriers(shared);
  ptx::griddepcontrol_wait();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < kMathWarps) {
    ptx::setmaxnreg_inc<kMathRegisters>();
    multiply<K, kGateUp>(p, shared);
    return;
  }
  ptx::setmaxnreg_dec<kOtherRegisters>();
  if (warp < kProducerWarp) {
    finish<K, kGateUp>(p, shared);
  } else if (threadIdx.x % kWarp == 0) {
    produce<K>(p, shared);
  }
}

}  // namespace dsv4::experts_kernel::sm90_few
