// Vector kernels of FP8 weights with block scales.

#include "dsv4/ops/linear/product_kernel.cuh"
#include "dsv4/ops/linear/product_vector.h"

namespace dsv4::product {

void vector_fp8(Device& device, const Product& p) {
  launch_decoder<DecodeFp8>(device, p);
}

}  // namespace dsv4::product
