// Tensor core kernels of k-bit weights.

#include "dsv4/ops/linear/product_mma.cuh"
#include "dsv4/ops/linear/product_mma.h"

namespace dsv4::product {

void mma_kbit(Device& device, const Product& p) {
  switch (p.weight[0].bits) {
    case 2:
      return launch_mma_decoder<DecodeKbit<2>>(device, p);
    case 3:
      return launch_mma_decoder<DecodeKbit<3>>(device, p);
    case 4:
      return launch_mma_decoder<DecodeKbit<4>>(device, p);
    default:
      return launch_mma_decoder<DecodeKbit<5>>(device, p);
  }
}

}  // namespace dsv4::product
