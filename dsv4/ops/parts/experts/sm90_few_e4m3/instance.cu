// One kernel for each K, product and number of columns.
// Instances: 2, true, kMaxColumns | 3, true, kMaxColumns | 4, true, kMaxColumns
// Instances: 2, false, kMaxColumns | 3, false, kMaxColumns | 4, false, kMaxColumns
// Instances: 2, true, kWideColumns | 3, true, kWideColumns | 4, true, kWideColumns

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/kernel.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/launch.cuh"

namespace dsv4::experts_kernel::sm90_few_e4m3 {

template <int K, bool kGateUp, int kColumns>
void launch_product(Device& device, const Params& p) {
  launch(device, kGateUp ? "experts_gate_up" : "experts_down", few_kernel<K, kGateUp, kColumns>,
         {.grid = device.info().num_sms,
          .block = kThreads,
          .shared = sizeof(SharedOf<K, kColumns>),
          .pdl = true},
         p);
}

template void launch_product<DSV4_INSTANCE>(Device& device, const Params& p);

}  // namespace dsv4::experts_kernel::sm90_few_e4m3
