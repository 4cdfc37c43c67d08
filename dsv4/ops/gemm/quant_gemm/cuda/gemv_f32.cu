// The GEMV kernels for F32 weights.

#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.h"

namespace dsv4::quant_gemm {

void gemv_f32(Device& device, const Problem& problem) {
  launch_gemv_tile<DecodeF32>(device, problem);
}

}  // namespace dsv4::quant_gemm
