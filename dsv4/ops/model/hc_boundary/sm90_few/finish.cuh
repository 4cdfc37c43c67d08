// The second kernel: the sums over the slices, then two CTAs per token.
//
// Problem    mix = sums * rho; x = sum_j pre_j X_j, rounded to bf16, x' = rms_norm(x), and Q8 of x'
//            where it is wanted; post = 2 sigmoid, comb = Sinkhorn, in the other CTA
// Bound      latency: sums and X from L2, two block barriers; Sinkhorn is 40 dependent steps
// Tiles      a thread has 8 columns (input.cuh); a warp sums a row of partial sums, 4 or 8 slices
//            per lane
// Before the wait  the norm's weights, base and scale

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/x/boundary_gates.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/params.cuh"

namespace dsv4::hc_boundary_kernel::sm90_few {

template <class W>
__device__ void finish_x(const Params& p, int token) {
  alignas(16) __shared__ float pre[kStreams];
  __shared__ float squares[kMaxGroups];
  const int thread = static_cast<int>(threadIdx.x), column = thread * kRun;
  const int lane = thread % kWarp, run = thread % kRuns;
  float norm[kRun];
  load<kRun>(static_cast<const W*>(p.norm) + column, norm);
  const PreGate gates(p, token, lane);
  ptx::griddepcontrol_wait();

  StreamRuns streams;
  streams.load(p, token, column);
  if (thread < kWarp) {
    const float gate = gates.compute(p, lane);
    if (lane % kGateLanes == 0 && lane < kGateLanes * kStreams) pre[lane / kGateLanes] = gate;
  }
  __syncthreads();
  const Run x = streams.combined(*reinterpret_cast<const float4*>(pre));
  const float square = group_square(x);
  if (run == 0) squares[thread / kRuns] = square;
  __syncthreads();
  const float root = root_of(p, squares, run);
  const Run out = normalized(x, root, norm);
  out.store(p.x + token * p.x_stride + column);
  if (p.codes == nullptr) return;
  const CodesOfRun q(out);
  *reinterpret_cast<uint2*>(p.codes + int64_t{token} * p.d + column) = q.codes;
  if (run == 0) p.code_scales[token * p.groups + thread / kRuns] = q.scale;
}

// grid: [t, 2], d / kRun threads
template <class W>
__global__ void __launch_bounds__(kMaxSlices* kSlice / kRun)
    finish_kernel(const __grid_constant__ Params p) {
  ptx::griddepcontrol_launch_dependents();
  const int token = static_cast<int>(blockIdx.x);
  if (blockIdx.y == 0) {
    finish_x<W>(p, token);
  } else {
    __shared__ float mix[kSums];
    ptx::griddepcontrol_wait();
    finish_gates(p, token, mix);
  }
}

}  // namespace dsv4::hc_boundary_kernel::sm90_few
