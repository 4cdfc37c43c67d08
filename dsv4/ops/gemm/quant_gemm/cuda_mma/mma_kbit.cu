// The tensor core kernels for k-bit weights.

#include "dsv4/ops/gemm/quant_gemm/cuda_mma/mma.cuh"
#include "dsv4/ops/gemm/quant_gemm/cuda_mma/mma.h"

namespace dsv4::quant_gemm {

void mma_kbit(Device& device, const Problem& p) {
  switch (p.weight[0].bits) {
    case 2:
      return launch_mma_tile<DecodeKbit<2>>(device, p);
    case 3:
      return launch_mma_tile<DecodeKbit<3>>(device, p);
    case 4:
      return launch_mma_tile<DecodeKbit<4>>(device, p);
    default:
      return launch_mma_tile<DecodeKbit<5>>(device, p);
  }
}

}  // namespace dsv4::quant_gemm
