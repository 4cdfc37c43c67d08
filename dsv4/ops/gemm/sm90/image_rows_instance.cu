// One kernel for each kind of image, product and number of columns.
//
// Instances: 2, ImageScale::kE4M4, true, 4096 | 2, ImageScale::kE4M4, false, 4096
// Instances: 3, ImageScale::kE4M4, true, 4096 | 3, ImageScale::kE4M4, false, 4096
// Instances: 4, ImageScale::kE4M4, true, 4096 | 4, ImageScale::kE4M4, false, 4096
// Instances: 4, ImageScale::kUe8m0, true, 4096 | 4, ImageScale::kUe8m0, false, 4096
// Instances: 4, ImageScale::kE4M3, true, 4096 | 4, ImageScale::kE4M3, false, 4096
// Instances: 2, ImageScale::kE4M4, true, 8192 | 2, ImageScale::kE4M4, false, 8192
// Instances: 3, ImageScale::kE4M4, true, 8192 | 3, ImageScale::kE4M4, false, 8192
// Instances: 4, ImageScale::kE4M4, true, 8192 | 4, ImageScale::kE4M4, false, 8192
// Instances: 4, ImageScale::kUe8m0, true, 8192 | 4, ImageScale::kUe8m0, false, 8192
// Instances: 4, ImageScale::kE4M3, true, 8192 | 4, ImageScale::kE4M3, false, 8192

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/kernel.cuh"

namespace dsv4::gemm::image_rows {

template <int K, ImageScale kScale, bool kGateUp, int kColumns>
void launch_product(Device& device, const Params& params) {
  launch(device, kGateUp ? "image_gate_up" : "image_rows",
         image_rows_kernel<K, kScale, kGateUp, kColumns>,
         {.grid = params.ctas,
          .block = experts_e4m3::kThreads,
          .shared = sizeof(SharedOf<K, kScale, kColumns>),
          .pdl = params.starts_early},
         params);
}
template void launch_product<DSV4_INSTANCE>(Device& device, const Params& params);

}  // namespace dsv4::gemm::image_rows
