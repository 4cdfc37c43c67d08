// The kernels of kbit_rows.h for one K and one type of x: 1, 2, 4, .. 32 rows of x.
//
// Instances: 2, bf16 | 3, bf16 | 4, bf16 | 5, bf16 | 2, f16 | 3, f16 | 4, f16 | 5, f16

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/call.cuh"
#include "dsv4/ops/gemm/sm90/kbit_rows/kernel.cuh"

namespace dsv4::gemm::kbit_rows {

static Plan last_plan;
static int last_k;
static void dump() {
  static long long t[264 * 4 * 8];
  if (cudaMemcpyFromSymbol(t, kbit_times, sizeof(t)) != cudaSuccess) return;
  const int ctas = last_plan.clusters * last_plan.ranks;
  double d[6] = {};
  long long first = t[0], last = 0, latest = 0;
  for (int i = 0; i < ctas * 4; ++i) {
    const long long* c = t + i * 8;
    for (int s = 0; s < 5; ++s) d[s] += double(c[2 + s] - c[1 + s]) / (ctas * 4);
    d[5] += double(c[7] - c[0]) / (ctas * 4);
    first = std::min(first, c[0]), last = std::max(last, c[7]), latest = std::max(latest, c[0]);
  }
  printf("K=%d ctas %d ranks %d cells %d units %d stages %d rounds %d rows %d | clocks: table %.0f wait %.0f x %.0f multiply %.0f store %.0f | ns: a CTA %.0f, first to last %lld, last begins %lld\n",
         last_k, ctas, last_plan.ranks, last_plan.cells, last_plan.stage_units, last_plan.stages,
         last_plan.rounds, last_plan.rows, d[0], d[1], d[2], d[3], d[4], d[5], last - first, latest - first);
}
template <int K, class X>
void launch_kbit_rows(Device& device, const Params& params) {
  const Plan& plan = params.plan;
  last_plan = plan;
  last_k = K;
  static const bool once = (std::atexit(dump), true);
  (void)once;
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
