// The third launch of the feed-forward block: down of the routed experts, and the sum of a token
// (docs/kernels/moe_fused.md).
//
// Problem    acc[t] = sum of bf16(w2 Q8(h)) over the entries of t, in ascending order, then of what
//            the shared expert adds, in f32
// Bound      bytes: 20 MB at K = 3 and one token, all of them in shared memory before the wait
// Tiles      a CTA has 32 rows of acc, two strips, of all entries: no sum leaves a CTA. An item is
//            two entries, each with the two strips, so that a warpgroup has four
//            (experts/sm90_few_e4m3); the pairs of both entries are columns of the same products,
//            and a warp uses those of its own entry. Of a rank of several, which has fewer rows, a
//            CTA has one strip, and an item four entries; w2 of the shared expert, whose hidden
//            values were exchanged with the others, comes first in the ring
// Roles      warps 0 - 15 math: keys, Q8 of h, items | warps 16, 17: a strip each, sums of all
//            items in registers | warp 18: routes, lists, copies | warp 19: routes
// Order      gate_up lets this kernel start when it has waited itself, so the logits are complete:
//            routing and copies come before the wait, h after it. This also holds where an exchange
//            of h runs between the two kernels
// Barriers   as gate_up.cuh, but 10
// Registers  104 of math warps, 64 of the others. Instances of 4 bits with w2 of the shared expert
//            spill a few bytes (tools/ptxas_allowed.txt)

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/epilogue/expert_rows.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/model/moe/sm90_fused/activations.cuh"
#include "dsv4/ops/model/moe/sm90_fused/routes.cuh"
#include "dsv4/ops/model/moe/sm90_fused/shared_down.cuh"

namespace dsv4::moe_kernel::sm90_fused {

// In the place of a tile of w2 that another kernel multiplies.
template <class S>
struct NoTile {
  __device__ int items() const { return 0; }
  __device__ e4m3::RingPlace<S> after() const { return {}; }
};

// What a math warpgroup does for w2 of the shared expert.
template <class S, class Tile>
struct PartOfShared : SharedDown<S, Tile> {
  using SharedDown<S, Tile>::SharedDown;
  __device__ void multiply_and_hand_over(S& shared) {
    e4m3::hand_over(this->multiply(shared), 0, shared);
  }
};
template <class S>
struct PartOfShared<S, NoTile<S>> {
  __device__ PartOfShared(const NoTile<S>&, int) {}
  __device__ void load() {}
  __device__ void store(S&) const {}
  __device__ void multiply_and_hand_over(S&) {}
};

template <class S, int kRows, class C>
__device__ auto shared_tile(const DownParams& p) {
  if constexpr (std::is_same_v<C, NoShared>)
    return NoTile<S>{};
  else
    return SharedTile<S, C, kRows>{p.shared, static_cast<int>(blockIdx.x)};
}

// One lane. ring: of the first step
template <class Shape, class S>
__device__ void copy_strips(const gemm::experts::Params& p, e4m3::RingPlace<S> ring, S& shared) {
  constexpr int kUnit = S::kUnit, kItemStrips = Shape::kItemStrips;
  const int steps = e4m3::steps_of(p), strip_bytes = p.chunks * kUnit;
  const int first_strip = static_cast<int>(blockIdx.x) * kItemStrips;
  const int strips = min(kItemStrips, p.strips - first_strip);
  for (int entry = 0; entry < shared.own.count; entry += Shape::kItemEntries) {
    const int entries = min(Shape::kItemEntries, shared.own.count - entry);
    const std::byte* images[Shape::kItemEntries];
#pragma unroll
    for (int i = 0; i < Shape::kItemEntries; ++i)
      images[i] = p.images.of(shared.own.entries[entry + min(i, entries - 1)].expert);
    for (int step = 0; step < steps; ++step, ring.next()) {
      const int run = min(e4m3::kGroups, p.chunks - step * e4m3::kGroups) * kUnit;
      shared.empty[ring.stage].wait(ring.phase ^ 1);
      shared.full[ring.stage].expect_tx(entries * strips * run);
#pragma unroll
      for (int i = 0; i < e4m3::kStrips; ++i) {
        const int strip = i % kItemStrips;
        if (i / kItemStrips >= entries || strip >= strips) continue;
        const std::byte* from = images[i / kItemStrips] +
                                int64_t{first_strip + strip} * strip_bytes +
                                step * e4m3::kGroups * kUnit;
        ptx::cp_async_bulk_evict_first(
            ptx::smem_address(shared.stages[ring.stage] + i * e4m3::kGroups * kUnit), from, run,
            shared.full[ring.stage]);
      }
      shared.full[ring.stage].arrive();
    }
  }
}

template <class Shape, class S, class Tile>
__device__ void down_math(const DownParams& p, const Tile& tile, S& shared) {
  constexpr int kTokens = Shape::kTokens, kItemEntries = Shape::kItemEntries,
                kWidth = Shape::kWidth;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = __shfl_sync(~0u, warp / e4m3::kGroupWarps, 0);  // so that addresses are uniform
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Scorer scorer(p.router, kTokens);
  scorer.load();
  scorer.store(shared.own);
  PartOfShared<S, Tile> down(tile, group);
  const Rows<kWidth> rows(p.routed, group, Shape::kPairBits);
  const int item_tiles = 2 * p.routed.chunks;
  ptx::barrier_sync(kListedBarrier, kListedThreads);
  const Routes& routes = shared.own;
  const int items = Shape::items(routes);
  e4m3::RingPlace<S> ring = tile.after();
  for (int item = 0; item < items;) {
    const int at_once = min(items - item, p.slots), pieces = rows.pieces(at_once);
    const auto find = [&](int piece) {
      const auto row_of = [&](int slot, int pair) -> const bf16* {
        const int entry = (item + slot) * kItemEntries + pair / kTokens, token = pair % kTokens;
        if (entry >= routes.count || (routes.tokens_of[entry] >> token & 1) == 0) return nullptr;
        return p.routed.x + (entry * kTokens + token) * p.routed.x_stride;
      };
      return piece < pieces ? rows.find(piece, row_of) : nullptr;
    };
    // Two pieces in flight: one token has one or two of a thread.
    const uint4 *const first = find(thread), *const second = find(thread + kGroupThreads);
    const bool is_first = item == 0;
    if (is_first) {
      ptx::griddepcontrol_wait();
      down.load();
    }
    e4m3::Columns16 x = rows.load(first), next = rows.load(second);
    if (is_first) down.store(shared);
    // The warpgroup has finished with the rows before.
    if (!is_first) ptx::barrier_sync(e4m3::group_barrier(group), kGroupThreads);
#pragma unroll 1
    for (int i = thread; i < pieces; i += kGroupThreads) {
      rows.store(i, x, item_tiles, shared);
      x = next;
      next = rows.load(find(i + 2 * kGroupThreads));
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(e4m3::group_barrier(group), kGroupThreads);
    if (is_first) down.multiply_and_hand_over(shared);
    for (int slot = 0; slot < at_once; ++slot, ++item) {
      const auto* tiles = shared.x + slot * item_tiles;
      e4m3::hand_over(
          e4m3::multiply_item<kWidth>(p.routed, ptx::make_smem_desc_128B(ptx::smem_address(tiles)),
                                      shared.x_scale + slot * item_tiles, group, ring, shared),
          tile.items() + item, shared);
    }
  }
}

// What the shared expert adds to the row of a lane. With NoTile, after the wait.
template <class Shape, class S, class Tile>
__device__ float shared_part(const DownParams& p, const Tile& tile, int strip, int token, int row,
                             bool stores, S& shared) {
  if constexpr (Shape::kHasShared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const float4 sum = take_shared(tile.p.split.ranks(), strip, lane / 4 * 4, shared);
    const float first = token == 0 ? sum.x : sum.y, eighth = token == 0 ? sum.z : sum.w;
    return gemm::experts::rounded(lane / 2 % 2 == 0 ? first : eighth);
  } else {
    return stores ? to_float(p.shared_y[token * p.shared_stride + row]) : 0;
  }
}

// An epilogue warp: a strip. Lane 4g + 2h + t has row g + 8h of token t.
template <class Shape, class S, class Tile>
__device__ void sum_entries(const DownParams& p, const Tile& tile, S& shared) {
  constexpr int kTokens = Shape::kTokens, kItemEntries = Shape::kItemEntries,
                kItemStrips = Shape::kItemStrips;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, token = lane % 2, half = lane / 2 % 2;
  const int warp_strip = static_cast<int>(threadIdx.x) / kWarp - e4m3::kMathWarps;
  const int strip = min(warp_strip, kItemStrips - 1);
  const int row =
      static_cast<int>(blockIdx.x) * Shape::kRows + strip * gemm::kUnitRows + lane / 4 + 8 * half;
  const bool stores = token < kTokens && row < p.routed.rows && strip == warp_strip;
  const Routes& routes = shared.own;
  ptx::barrier_sync(kListedBarrier, kListedThreads);
  const float scale2 =  // of entry `lane`
      lane < routes.count ? p.routed.scale2[routes.entries[lane].expert * 3 + 2] * p.routed.factor
                          : 0;
  ptx::griddepcontrol_wait();
  const float shared_y = shared_part<Shape>(p, tile, strip, token, row, stores, shared);
  float sum = 0;
  for (int item = 0; item < Shape::items(routes); ++item) {
    const int buffer = (tile.items() + item) % e4m3::kBuffers;
    ptx::barrier_sync(e4m3::filled_barrier(buffer), e4m3::kFilledThreads);
#pragma unroll
    for (int i = 0; i < kItemEntries; ++i) {
      const int entry = item * kItemEntries + i;
      // Pair kTokens i + token is in column (kTokens i + token) % 2 of the lane of the other half.
      const int pair = kTokens * i + min(token, kTokens - 1);
      const int from = lane / 4 * 4 + pair / 2, column = 2 * half + pair % 2;
      float part = 0;
#pragma unroll
      for (int group = 0; group < e4m3::kGroups; ++group) {
        const int warp = group * e4m3::kGroupWarps + i * kItemStrips + strip;
        part += reinterpret_cast<const float*>(&shared.partials[buffer].sums[warp][from])[column];
      }
      const float y = gemm::experts::rounded(part * __shfl_sync(~0u, scale2, entry));
      if (entry < routes.count && (routes.tokens_of[entry] >> token & 1) != 0) sum += y;
    }
    shared.drained[buffer].arrive();
  }
  if (stores) p.acc[token * p.acc_stride + row] = sum + shared_y;
}

template <int K, ImageScale kScale, int kTokens, class C = NoShared>
__global__ void __launch_bounds__(kThreads, 1) down_kernel(const __grid_constant__ DownParams p) {
  using S = Shared<K, kScale>;
  using Shape = DownShape<kTokens, C>;
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto tile = shared_tile<S, Shape::kRows, C>(p);
  if (p.waits_first) ptx::griddepcontrol_wait();
  clear(shared);
  e4m3::init_barriers(shared);
  if (warp < e4m3::kMathWarps) {
    ptx::setmaxnreg_inc<e4m3::kMathRegisters>();
    return down_math<Shape>(p, tile, shared);
  }
  ptx::setmaxnreg_dec<e4m3::kOtherRegisters>();
  if (warp < kListWarp) return sum_entries<Shape>(p, tile, shared);
  if constexpr (Shape::kHasShared)
    if (warp == kHelperWarp && threadIdx.x % kWarp == 0) tile.copy(shared);
  route(p.router, kTokens, warp == kListWarp, shared.own);
  if (warp == kListWarp && threadIdx.x % kWarp == 0)
    copy_strips<Shape>(p.routed, tile.after(), shared);
  ptx::griddepcontrol_wait();
}

}  // namespace dsv4::moe_kernel::sm90_fused
