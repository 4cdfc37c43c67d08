// One kernel for each K and product.
// Instances: 2 | 3 | 4 | 5

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts/sm90_few/kernel.cuh"
#include "dsv4/ops/parts/experts/sm90_few/launch.cuh"

namespace dsv4::experts_kernel::sm90_few {

template <int K, bool kGateUp>
void launch_product(Device& device, const Params& p) {
  launch(device, kGateUp ? "experts_gate_up" : "experts_down", few_kernel<K, kGateUp>,
         {.grid = p.ctas, .block = kThreads, .shared = sizeof(Shared<K>), .pdl = p.starts_early},
         p);
}

template void launch_product<DSV4_INSTANCE, true>(Device& device, const Params& p);
template void launch_product<DSV4_INSTANCE, false>(Device& device, const Params& p);

}  // namespace dsv4::experts_kernel::sm90_few
