// The kernels of kbit_rows.h for one K and one type of x: 1, 2, 4, .. 32 rows of x.
//
// Instances: 2, bf16 | 3, bf16 | 4, bf16 | 5, bf16 | 2, f16 | 3, f16 | 4, f16 | 5, f16

#include <algorithm>
#include <cstdlib>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/call.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/kernel.cuh"

namespace dsv4::gemm::kbit_rows {

template <int K, class X>
void launch_kbit_rows(Device& device, const Params& params) {
  const Plan& plan = params.plan;
  const auto run = [&]<int kCells>(std::integral_constant<int, kCells>) {
    launch(
        device, "kbit_rows", kbit_rows_kernel<K, X, kCells>,
        {.grid = int64_t{plan.clusters} * plan.ranks,
         .block = kThreads,
         .grid_y = (params.tokens + plan.cells - 1) / plan.cells,
         .shared = std::getenv("KBIT_ALONE") != nullptr ? std::max(Layout(K, plan).bytes, 120 << 10)
                                                        : Layout(K, plan).bytes,
         .cluster = plan.ranks,
         .pdl = std::getenv("KBIT_NOPDL") == nullptr},
        params);
  };
  switch (plan.cells) {
    case 1:
      return run(std::integral_constant<int, 1>());
    case 2:
      return run(std::integral_constant<int, 2>());
    case 4:
      return run(std::integral_constant<int, 4>());
    case 8:
      return run(std::integral_constant<int, 8>());
    case 16:
      return run(std::integral_constant<int, 16>());
    default:
      return run(std::integral_constant<int, 32>());
  }
}
template void launch_kbit_rows<DSV4_INSTANCE>(Device& device, const Params& params);

}  // namespace dsv4::gemm::kbit_rows
