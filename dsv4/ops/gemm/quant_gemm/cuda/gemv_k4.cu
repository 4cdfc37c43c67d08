// The GEMV kernels for 4-bit weights.

#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/quant_gemm/cuda/gemv.h"

namespace dsv4::quant_gemm {

void gemv_k4(Device& device, const Problem& problem) {
  launch_gemv_tile<DecodeKbit<4>>(device, problem);
}

}  // namespace dsv4::quant_gemm
