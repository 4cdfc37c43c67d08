// Tensor core kernels for few pairs: BF16, FP8, MXFP4 and NVFP4 weights.

#include "dsv4/ops/linear/product_mma_few.cuh"

#include "dsv4/ops/linear/product_mma.h"

namespace dsv4::product {

void few_plain(Device& device, const Product& p) {
  switch (p.weight[0].format) {
    case WeightFormat::kBF16:
      return launch_few_decoder<DecodeBF16>(device, p);
    case WeightFormat::kFp8Block:
      return launch_few_decoder<DecodeFp8>(device, p);
    case WeightFormat::kMxfp4:
      return launch_few_decoder<DecodeMxfp4>(device, p);
    default:
      return launch_few_decoder<DecodeNvfp4>(device, p);
  }
}

}  // namespace dsv4::product
