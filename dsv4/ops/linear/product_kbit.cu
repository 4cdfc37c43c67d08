// Vector kernels of k-bit weights.

#include "dsv4/ops/linear/product_kernel.cuh"
#include "dsv4/ops/linear/product_vector.h"

namespace dsv4::product {

void vector_kbit(Device& device, const Product& p) {
  switch (p.weight[0].bits) {
    case 2:
      return launch_decoder<DecodeKbit<2>>(device, p);
    case 3:
      return launch_decoder<DecodeKbit<3>>(device, p);
    case 4:
      return launch_decoder<DecodeKbit<4>>(device, p);
    default:
      return launch_decoder<DecodeKbit<5>>(device, p);
  }
}

}  // namespace dsv4::product
