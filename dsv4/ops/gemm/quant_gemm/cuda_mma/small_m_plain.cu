// The small-M tensor core kernels for BF16, FP8, MXFP4 and NVFP4 weights.

#include "dsv4/ops/gemm/quant_gemm/cuda_mma/small_m.cuh"

#include "dsv4/ops/gemm/quant_gemm/cuda_mma/mma.h"

namespace dsv4::quant_gemm {

void small_m_plain(Device& device, const Problem& p) {
  switch (p.weight[0].format) {
    case WeightFormat::kBF16:
      return launch_small_m_tile<DecodeBF16>(device, p);
    case WeightFormat::kFp8Block:
      return launch_small_m_tile<DecodeFp8>(device, p);
    case WeightFormat::kMxfp4:
      return launch_small_m_tile<DecodeMxfp4>(device, p);
    default:
      return launch_small_m_tile<DecodeNvfp4>(device, p);
  }
}

}  // namespace dsv4::quant_gemm
