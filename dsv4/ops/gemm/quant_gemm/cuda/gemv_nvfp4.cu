// The GEMV kernels for NVFP4 weights.

#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.h"

namespace dsv4::quant_gemm {

void gemv_nvfp4(Device& device, const Problem& problem) {
  launch_gemv_tile<DecodeNvfp4>(device, problem);
}

}  // namespace dsv4::quant_gemm
