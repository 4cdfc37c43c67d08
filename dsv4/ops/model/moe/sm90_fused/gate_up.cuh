// The second launch of the feed-forward block: routing, gate and up of the routed experts with
// SwiGLU, and w2 of the shared expert (docs/kernels/moe_fused.md). A rank of several, whose hidden
// values are exchanged first, has no w2 here.
//
// Problem    pair = (entry, token): h[pair] = bf16(weight * swiglu(bf16(w1 Q8(x)), bf16(w3 Q8(x))))
//            of the chosen experts; y = bf16(w2 Q8(h)) of the shared expert
// Bound      bytes: 41 MB at K = 3 and one token, and 8.4 MB of w2
// Tiles      an item is 64 rows of one entry and all columns, as in experts/sm90_few_e4m3, for both
//            tokens whoever chose it; w2: 32 rows, all columns
// Roles      warps 0 - 15 math: an expert's key each; Q8 of x and h; w2; items | warps 16, 17:
//            weights, epilogues | warp 18: routes, lists, copies items | warp 19: copies w2, routes
// Order      w2 is copied before the wait; entries start when they are listed
// Barriers   full[stage]     1    copying lane and the bytes | math warps
//            empty[stage]    16   math warps | copying lane
//            named 1, 2      576  math warps, sums of buffer 0, 1 | epilogue
//            named 3 .. 6    128  warpgroup j, activations stored
//            named 7         512 + 32 a token | math warps, keys stored | the routing warps
//            named 8         64   warp 19, choices stored | warp 18
//            named 9         608  warp 18, entries listed | math and epilogue
//            named 10        64   epilogue, weights stored
//            drained[buffer] 64   epilogue | math warps
// Registers  104 of math warps, 64 of the others, no spills

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/producer.cuh"
#include "dsv4/ops/model/moe/sm90_fused/activations.cuh"
#include "dsv4/ops/model/moe/sm90_fused/routes.cuh"
#include "dsv4/ops/model/moe/sm90_fused/shared_down.cuh"

namespace dsv4::moe_kernel::sm90_fused {

// The items of this CTA, when the entries are listed. Their divisions are done before the routing,
// for the number of entries that is likely.
__device__ inline gemm::experts::Range range_of(const GateUpParams& p, const Routes& routes) {
  if (routes.count == p.tokens * p.router.k) return routes.expected;
  return gemm::experts::Range(p.routed, routes.entries, routes.count);
}

template <class S, class Tile>
__device__ void gate_up_math(const GateUpParams& p, const Tile& tile, S& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = __shfl_sync(~0u, warp / e4m3::kGroupWarps, 0);  // so that addresses are uniform
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Scorer scorer(p.router, p.tokens);
  SharedDown<S, Tile> down(tile, group);
  const Rows<2> rows(p.routed, group, p.tokens - 1);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  scorer.load();
  down.load();
  // At most as many pieces as threads.
  const auto token_row = [&](int, int token) { return p.routed.x + token * p.routed.x_stride; };
  const bool has_piece = thread < rows.pieces(1);
  const e4m3::Columns16 x = rows.load(has_piece ? rows.find(thread, token_row) : nullptr);
  scorer.store(shared.own);
  down.store(shared);
  if (has_piece) rows.store(thread, x, 0, shared);
  ptx::fence_proxy_async();
  ptx::barrier_sync(e4m3::group_barrier(group), kGroupThreads);
  if (tile.exists()) e4m3::hand_over(down.multiply(shared), 0, shared);
  ptx::barrier_sync(kListedBarrier, kListedThreads);
  const int items = range_of(p, shared.own).stages;
  const uint64_t tiles = ptx::make_smem_desc_128B(ptx::smem_address(shared.x));
  e4m3::RingPlace<S> ring = tile.after();
  for (int i = 0; i < items; ++i)
    e4m3::hand_over(e4m3::multiply_item<2>(p.routed, tiles, shared.x_scale, group, ring, shared),
                    tile.items() + i, shared);
}

// The list warp.
__device__ inline void store_chosen(int32_t* chosen, int k, const Routes& routes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if (lane < k) chosen[lane] = routes.expert[lane];
}

// C: the Config of w2 of the shared expert.
template <int K, ImageScale kScale, class C>
__global__ void __launch_bounds__(kThreads, 1)
    gate_up_kernel(const __grid_constant__ GateUpParams p) {
  using S = Shared<K, kScale>;
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const SharedTile<S, C, kSharedRows> tile{
      p.shared, static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x) + p.shared_tiles};
  clear(shared);
  if (threadIdx.x == 0)
    shared.own.expected = gemm::experts::Range(p.routed, shared.own.entries, p.tokens * p.router.k);
  e4m3::init_barriers(shared);
  if (warp < e4m3::kMathWarps) {
    ptx::setmaxnreg_inc<e4m3::kMathRegisters>();
    return gate_up_math(p, tile, shared);
  }
  ptx::setmaxnreg_dec<e4m3::kOtherRegisters>();
  const bool one_lane = threadIdx.x % kWarp == 0;
  if (warp == kHelperWarp && one_lane) tile.copy(shared);
  __syncwarp();
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (warp >= kListWarp) {
    route(p.router, p.tokens, warp == kListWarp, shared.own);
    if (warp == kListWarp && p.chosen != nullptr && blockIdx.x == 0)
      store_chosen(p.chosen, p.router.k, shared.own);
    if (warp == kListWarp && one_lane)
      e4m3::produce(p.routed, range_of(p, shared.own), shared, tile.after());
    return;
  }
  ptx::barrier_sync(kListedBarrier, kListedThreads);
  store_weights(p.router, p.tokens, shared.own);
  if (tile.exists()) finish_shared(tile, shared);
  e4m3::finish<true>(p.routed, range_of(p, shared.own), shared.own.weight, shared, tile.items());
}

}  // namespace dsv4::moe_kernel::sm90_fused
