#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/experts/cuda/plan.h"

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/select.cuh"

namespace dsv4 {
namespace {

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
static_assert(kThreads == kMaxPlanned, "one thread for each expert");
// Up to this many pairs, one CTA counts and places the pairs and lists the tiles in one launch.
constexpr int64_t kOneCtaPairs = 1024;

struct Pairs {
  const int32_t* ids;
  const float* weights;
  int64_t id_stride, weight_stride;
  int count, slots;  // count = tokens * slots
  int first_id;      // of expert 0 of the plan

  __device__ int expert(int pair) const {
    if (id_stride == slots) return ids[pair] - first_id;
    return ids[pair / slots * id_stride + pair % slots] - first_id;
  }
  __device__ float weight(int pair) const {
    return weights[pair / slots * weight_stride + pair % slots];
  }
};

// One warp places the pairs of expert e in order, after the pairs of lower experts. expert_of: the
// expert of a pair
template <class ExpertOf>
__device__ void place(const Pairs& pairs, const ExpertOf& expert_of, const ExpertPlan& plan, int e,
                      int num_experts) {
  const int lane = threadIdx.x % kWarp;
  int before = 0, mine = 0;
  for (int i = lane; i < pairs.count; i += kWarp) {
    const int expert = expert_of(i);
    before += expert < e, mine += expert == e;
  }
  before = __reduce_add_sync(~0u, before);
  mine = __reduce_add_sync(~0u, mine);
  if (lane == 0) plan.first[e] = before;
  if (lane == 0 && e == num_experts - 1) plan.first[num_experts] = before + mine;
  for (int start = 0; mine > 0 && start < pairs.count; start += kWarp) {
    const int i = start + lane;
    const bool here = i < pairs.count && expert_of(i) == e;
    const uint32_t found = __ballot_sync(~0u, here);
    if (here) {
      const int at = before + __popc(found & ((1u << lane) - 1));
      plan.token[at] = i / pairs.slots;
      plan.weight[at] = pairs.weight(i);
      plan.pair_of[i] = at;
    }
    before += __popc(found);
  }
}

// One CTA lists the tiles in order of expert. warp_tiles: one number a warp, shared
__device__ void list_tiles(const ExpertPlan& plan, int num_experts, int tile_m,
                           int32_t* warp_tiles) {
  const int e = static_cast<int>(threadIdx.x);
  const int first = e < num_experts ? plan.first[e] : 0;
  const int count = e < num_experts ? plan.first[e + 1] - first : 0;
  const int tiles = (count + tile_m - 1) / tile_m;
  const int through = warp_sum_through(tiles);
  if (e % kWarp == kWarp - 1) warp_tiles[e / kWarp] = through;
  __syncthreads();
  const int at = sum_warps(warp_tiles).before + through - tiles;
  for (int i = 0; i < tiles; ++i)
    plan.tiles[at + i] = {e, first + i * tile_m, min(tile_m, count - i * tile_m)};
  if (e == kThreads - 1) *plan.num_tiles = at + tiles;
}

__global__ void __launch_bounds__(kThreads)
    place_kernel(Pairs pairs, ExpertPlan plan, int num_experts, int tile_m,
                 const __grid_constant__ Scale2s scale2s) {
  ptx::pdl_start();
  __shared__ int32_t warp_tiles[kWarps];
  if (blockIdx.x == 0 && static_cast<int>(threadIdx.x) < num_experts) {
    plan.scale2_w1[threadIdx.x] = scale2s.w1[threadIdx.x];
    plan.scale2_w3[threadIdx.x] = scale2s.w3[threadIdx.x];
    plan.scale2_w2[threadIdx.x] = scale2s.w2[threadIdx.x];
  }
  const int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (pairs.count > kOneCtaPairs) {  // the grid may still be one CTA: few experts
    const auto expert_of = [&](int pair) { return pairs.expert(pair); };
    for (int e = warp; e < num_experts; e += static_cast<int>(gridDim.x) * kWarps)
      place(pairs, expert_of, plan, e, num_experts);
    return;
  }
  __shared__ int32_t staged[kOneCtaPairs];
  for (int i = threadIdx.x; i < pairs.count; i += kThreads) staged[i] = pairs.expert(i);
  __syncthreads();
  const auto expert_of = [&](int pair) { return staged[pair]; };
  for (int e = warp; e < num_experts; e += kWarps) place(pairs, expert_of, plan, e, num_experts);
  __syncthreads();
  list_tiles(plan, num_experts, tile_m, warp_tiles);
}

__global__ void __launch_bounds__(kThreads)
    tiles_kernel(ExpertPlan plan, int num_experts, int tile_m) {
  ptx::pdl_start();
  __shared__ int32_t warp_tiles[kWarps];
  list_tiles(plan, num_experts, tile_m, warp_tiles);
}

}  // namespace

ExpertPlan make_expert_plan(Device& device, const ExpertsArgs& args, int tile_m,
                            const Scale2s& scale2s) {
  Scratch& scratch = device.workspace();
  const auto e = static_cast<int64_t>(args.stack.size());
  const int64_t slots = args.experts.dim(1), pairs = args.x.dim(0) * slots;
  const auto ints = [&](int64_t count) { return scratch.take(DType::kI32, {count}).as<int32_t>(); };
  const auto floats = [&](int64_t count) { return scratch.take(DType::kF32, {count}).as<float>(); };
  // Every tile has a pair, and all tiles of an expert but one are full.
  const int64_t max_tiles = std::min(pairs, std::min(e, pairs) + pairs / tile_m);
  const ExpertPlan plan{.token = ints(pairs),
                        .weight = floats(pairs),
                        .pair_of = ints(pairs),
                        .first = ints(e + 1),
                        .tiles = reinterpret_cast<gemm::cuda::RowTile*>(ints(3 * max_tiles)),
                        .num_tiles = ints(1),
                        .scale2_w1 = floats(e),
                        .scale2_w3 = floats(e),
                        .scale2_w2 = floats(e),
                        .max_tiles = max_tiles};
  const Pairs in{.ids = args.experts.as<int32_t>(),
                 .weights = args.weights.as<float>(),
                 .id_stride = args.experts.row_stride(),
                 .weight_stride = args.weights.row_stride(),
                 .count = static_cast<int>(pairs),
                 .slots = static_cast<int>(slots),
                 .first_id = static_cast<int>(args.stack.first_id())};
  const bool one_cta = pairs <= kOneCtaPairs;
  launch(device, "experts_place", place_kernel,
         {.grid = pairs == 0 ? 0
                  : one_cta  ? 1
                             : (e + kWarps - 1) / kWarps,
          .block = kThreads,
          .pdl = true},
         in, plan, e, tile_m, scale2s);
  launch(device, "experts_tiles", tiles_kernel,
         {.grid = one_cta ? 0 : 1, .block = kThreads, .pdl = true}, plan, e, tile_m);
  return plan;
}

}  // namespace dsv4
