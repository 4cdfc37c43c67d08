// Vector kernels of F32, BF16 and F16 weights.

#include "dsv4/ops/linear/product_kernel.cuh"
#include "dsv4/ops/linear/product_vector.h"

namespace dsv4::product {

void vector_float(Device& device, const Product& p) {
  switch (p.weight[0].format) {
    case WeightFormat::kF32:
      return launch_decoder<DecodeF32>(device, p);
    case WeightFormat::kBF16:
      return launch_decoder<DecodeBF16>(device, p);
    default:
      return launch_decoder<DecodeF16>(device, p);
  }
}

}  // namespace dsv4::product
