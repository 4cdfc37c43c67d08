// Tensor core kernels for few pairs: k-bit weights.

#include "dsv4/ops/linear/product_mma.h"
#include "dsv4/ops/linear/product_mma_few.cuh"

namespace dsv4::product {

void few_kbit(Device& device, const Product& p) {
  switch (p.weight[0].bits) {
    case 2:
      return launch_few_decoder<DecodeKbit<2>>(device, p);
    case 3:
      return launch_few_decoder<DecodeKbit<3>>(device, p);
    case 4:
      return launch_few_decoder<DecodeKbit<4>>(device, p);
    default:
      return launch_few_decoder<DecodeKbit<5>>(device, p);
  }
}

}  // namespace dsv4::product
