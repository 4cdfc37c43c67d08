// The GEMV kernels for FP8 weights.

#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.h"

namespace dsv4::quant_gemm {

void gemv_fp8(Device& device, const Problem& problem) {
  launch_gemv_tile<DecodeFp8>(device, problem);
}

}  // namespace dsv4::quant_gemm
