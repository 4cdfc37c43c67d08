// Vector kernels of MXFP4 and NVFP4 weights.

#include "dsv4/ops/linear/product_kernel.cuh"
#include "dsv4/ops/linear/product_vector.h"

namespace dsv4::product {

void vector_fp4(Device& device, const Product& p) {
  p.weight[0].format == WeightFormat::kMxfp4 ? launch_decoder<DecodeMxfp4>(device, p)
                                             : launch_decoder<DecodeNvfp4>(device, p);
}

}  // namespace dsv4::product
