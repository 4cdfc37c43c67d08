// One kernel for each K.
// Instances: 2 | 3 | 4 | 5

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/grouped/kernel.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"
#include "dsv4/ops/parts/experts/sm90_grouped/launch.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

template <int K>
void launch_products(Device& device, const grouped::Params& p) {
  using Weights = gemm::KbitImageScaled<K>;
  launch(device, "experts_products", grouped::grouped_kernel<Weights>,
         {.grid = device.info().num_sms,
          .block = grouped::kThreads,
          .shared = sizeof(grouped::Shared<Weights>)},
         p);
}

template void launch_products<DSV4_INSTANCE>(Device& device, const grouped::Params& p);

}  // namespace dsv4::experts_kernel::sm90_grouped
