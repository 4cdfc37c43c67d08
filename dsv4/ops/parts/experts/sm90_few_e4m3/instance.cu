// One kernel for each kind of image, product and number of columns.
// Instances: 2, ImageScale::kE4M4, true, kMaxColumns | 2, ImageScale::kE4M4, false, kMaxColumns
// Instances: 3, ImageScale::kE4M4, true, kMaxColumns | 3, ImageScale::kE4M4, false, kMaxColumns
// Instances: 4, ImageScale::kE4M4, true, kMaxColumns | 4, ImageScale::kE4M4, false, kMaxColumns
// Instances: 4, ImageScale::kUe8m0, true, kMaxColumns | 4, ImageScale::kUe8m0, false, kMaxColumns
// Instances: 4, ImageScale::kE4M3, true, kMaxColumns | 4, ImageScale::kE4M3, false, kMaxColumns
// Instances: 2, ImageScale::kE4M4, true, kWideColumns | 3, ImageScale::kE4M4, true, kWideColumns
// Instances: 4, ImageScale::kE4M4, true, kWideColumns | 4, ImageScale::kUe8m0, true, kWideColumns
// Instances: 4, ImageScale::kE4M3, true, kWideColumns

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/kernel.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/launch.cuh"

namespace dsv4::experts_kernel::sm90_few_e4m3 {

template <int K, ImageScale kScale, bool kGateUp, int kColumns>
void launch_product(Device& device, const Params& p) {
  launch(device, kGateUp ? "experts_gate_up" : "experts_down",
         few_kernel<K, kScale, kGateUp, kColumns>,
         {.grid = p.ctas,
          .block = kThreads,
          .shared = sizeof(SharedOf<K, kScale, kColumns>),
          .pdl = p.starts_early},
         p);
}

template void launch_product<DSV4_INSTANCE>(Device& device, const Params& p);

}  // namespace dsv4::experts_kernel::sm90_few_e4m3
