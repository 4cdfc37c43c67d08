// SwiGLU of gate and up that are stored in bf16, as StoreHidden (kernels.cuh) computes it.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/x/columns8.cuh"

namespace dsv4::moe_kernel::sm90_few {

struct HiddenParams {
  const bf16* gate_up;  // [t, 2 inner], contiguous: gate, then up
  bf16* hidden;         // [t, inner], on 16 bytes
  int64_t hidden_stride;
  int inner;  // a multiple of gemm::kRun
  float limit;
};

inline constexpr int kHiddenThreads = 128;

// grid: [t, inner / kRun / kHiddenThreads]
__global__ void __launch_bounds__(kHiddenThreads) hidden_kernel(const HiddenParams p) {
  ptx::pdl_start();
  const int column = static_cast<int>(blockIdx.y * kHiddenThreads + threadIdx.x) * gemm::kRun;
  if (column >= p.inner) return;
  const bf16* const from = p.gate_up + int64_t{blockIdx.x} * 2 * p.inner + column;
  float gate[gemm::kRun], up[gemm::kRun];
  gemm::Run::load(from).widen(gate);
  gemm::Run::load(from + p.inner).widen(up);
#pragma unroll
  for (int i = 0; i < gemm::kRun; ++i) gate[i] = swiglu(gate[i], up[i], 1, p.limit);
  gemm::Run::rounded(gate).store(p.hidden + blockIdx.x * p.hidden_stride + column);
}

}  // namespace dsv4::moe_kernel::sm90_few
