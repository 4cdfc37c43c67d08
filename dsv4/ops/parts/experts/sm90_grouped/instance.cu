// One kernel for each kind of image.
// Instances: 2, kE4M4 | 3, kE4M4 | 4, kE4M4 | 5, kE4M4 | 4, kUe8m0 | 4, kE4M3

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/grouped/kernel.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"
#include "dsv4/ops/parts/experts/sm90_grouped/launch.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

using enum ImageScale;

template <int K, ImageScale kScale>
void launch_products(Device& device, const grouped::Params& p) {
  using Weights = gemm::KbitImageScaled<K, kScale>;
  launch(device, "experts_products", grouped::grouped_kernel<Weights>,
         {.grid = device.info().num_sms,
          .block = grouped::kThreads,
          .shared = sizeof(grouped::Shared<Weights>)},
         p);
}

template void launch_products<DSV4_INSTANCE>(Device& device, const grouped::Params& p);

}  // namespace dsv4::experts_kernel::sm90_grouped
