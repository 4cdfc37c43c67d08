// The kernels of kbit_wide.h for one K and one type of x: all tiles.
//
// Instances: 2, bf16 | 3, bf16 | 4, bf16 | 5, bf16 | 2, f16 | 3, f16 | 4, f16 | 5, f16

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/call.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide/kernel.cuh"

namespace dsv4::gemm::kbit_wide {

template <int K, class X>
void launch_kbit_wide(Device& device, const Plan& plan, const Params& params) {
  with_tile(plan.tile, [&]<int kGroups, int kColumns>() {
    using C = Config<K, X, kGroups, kColumns>;
    launch(device, "kbit_wide", kbit_wide_kernel<C>,
           {.grid = int64_t{plan.row_tiles} << plan.rank_bits,
            .block = C::kThreads,
            .grid_y = plan.x_tiles,
            .shared = sizeof(Shared<C>),
            .cluster = plan.ranks(),
            .pdl = true},
           params);
  });
}
template void launch_kbit_wide<DSV4_INSTANCE>(Device& device, const Plan& plan,
                                              const Params& params);

}  // namespace dsv4::gemm::kbit_wide
