// The GEMV kernels for BF16 weights.

#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.h"

namespace dsv4::quant_gemm {

void gemv_bf16(Device& device, const Problem& problem) {
  launch_gemv_tile<DecodeBF16>(device, problem);
}

}  // namespace dsv4::quant_gemm
