// One warp per token (routing.cuh).

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/router/router.h"
#include "dsv4/ops/parts/router/routing.cuh"

namespace dsv4::router_kernel::cuda {
namespace {

using router_kernel::Routing;

constexpr int kWarps = 4;  // per CTA

__device__ int64_t token_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
}

template <int kPer>
__global__ void learned_kernel(Routing r) {
  ptx::pdl_start();
  const int64_t token = token_of_warp();
  if (token < r.t) router_kernel::route_learned<kPer>(r, token);
}

// Entry: the element type of the table.
template <class Entry>
__global__ void hash_kernel(Routing r) {
  ptx::pdl_start();
  const int64_t token = token_of_warp();
  if (token < r.t) router_kernel::route_hash<Entry>(r, token);
}

}  // namespace

const char* reject(const Context&, const RouterArgs& args) {
  if (args.experts.dim(1) > kWarp) return "more choices than lanes";
  if (args.logits.dim(1) > kWarp * router_kernel::kMaxPerLane)
    return "more experts than a warp holds";
  return nullptr;
}

void run(const Context& context, const RouterArgs& args) {
  const Routing r = router_kernel::make_routing(args);
  const auto kernel = r.table != nullptr
                          ? r.table_is_i64 ? hash_kernel<int64_t> : hash_kernel<int32_t>
                      : r.experts <= 8 * kWarp  ? learned_kernel<8>
                      : r.experts <= 12 * kWarp ? learned_kernel<12>
                                                : learned_kernel<router_kernel::kMaxPerLane>;
  launch(*context.device, "router", kernel,
         {.grid = ceil_div(r.t, kWarps), .block = kWarps * kWarp, .pdl = true}, r);
}

}  // namespace dsv4::router_kernel::cuda
