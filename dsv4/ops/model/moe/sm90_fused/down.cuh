// The third launch of the feed-forward block: down of the routed experts, and the sum of a token
// (docs/kernels/moe_fused.md).
//
// Problem    acc[t] = sum of bf16(w2 Q8(h)) over the entries of t, in ascending order, then of what
//            the shared expert adds, in f32
// Bound      bytes: 20 MB at K = 3 and one token, all of them in shared memory before the wait
// Tiles      a CTA has 32 rows of acc, two strips, of all entries: no sum leaves a CTA. An item is
//            two entries, each with the two strips, so that a warpgroup has four
//            (experts/sm90_few_e4m3); the pairs of both entries are columns of the same products,
//            and a warp uses those of its own entry
// Roles      warps 0 - 15 math: keys, Q8 of h, items | warps 16, 17: a strip each, sums of all
//            items in registers | warp 18: routes, lists, copies | warp 19: routes
// Order      gate_up lets this kernel start when it has waited itself, so the logits are complete:
//            routing and copies come before the wait, h after it
// Barriers   as gate_up.cuh, but 10
// Registers  104 of math warps, 64 of the others, no spills

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/epilogue/expert_rows.cuh"
#include "dsv4/ops/gemm/sm90/experts_e4m3/multiply.cuh"
#include "dsv4/ops/model/moe/sm90_fused/activations.cuh"
#include "dsv4/ops/model/moe/sm90_fused/routes.cuh"

namespace dsv4::moe_kernel::sm90_fused {

inline constexpr int kItemEntries = 2, kItemStrips = e4m3::kStrips / kItemEntries;
static_assert(kItemEntries == 2);                                // copy_strips
inline constexpr int kDownRows = kItemStrips * gemm::kUnitRows;  // of a CTA

__device__ inline int items_of(const Routes& routes) {
  return (routes.count + kItemEntries - 1) / kItemEntries;
}

// One lane.
template <class S>
__device__ void copy_strips(const gemm::experts::Params& p, S& shared) {
  constexpr int kUnit = S::kUnit;
  const int steps = e4m3::steps_of(p), strip_bytes = p.chunks * kUnit;
  const int first_strip = static_cast<int>(blockIdx.x) * kItemStrips;
  const int strips = min(kItemStrips, p.strips - first_strip);
  e4m3::RingPlace<S> ring;
  for (int entry = 0; entry < shared.own.count; entry += kItemEntries) {
    const int entries = min(kItemEntries, shared.own.count - entry);
    const std::byte* const first = p.images.of(shared.own.entries[entry].expert);
    const std::byte* const last = p.images.of(shared.own.entries[entry + entries - 1].expert);
    for (int step = 0; step < steps; ++step, ring.next()) {
      const int run = min(e4m3::kGroups, p.chunks - step * e4m3::kGroups) * kUnit;
      shared.empty[ring.stage].wait(ring.phase ^ 1);
      shared.full[ring.stage].expect_tx(entries * strips * run);
      for (int i = 0; i < entries * kItemStrips; ++i) {
        const int strip = i % kItemStrips;
        if (strip >= strips) continue;
        const std::byte* from = (i < kItemStrips ? first : last) +
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

template <int kTokens, class S>
__device__ void down_math(const DownParams& p, S& shared) {
  constexpr int kWidth = kItemEntries * kTokens;  // pairs of an item
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int group = __shfl_sync(~0u, warp / e4m3::kGroupWarps, 0);  // so that addresses are uniform
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Scorer scorer(p.router, kTokens);
  scorer.load();
  scorer.store(shared.own);
  const Rows<kWidth> rows(p.routed, group, kTokens);
  const int item_tiles = 2 * p.routed.chunks;
  ptx::barrier_sync(kListedBarrier, kListedThreads);
  const Routes& routes = shared.own;
  e4m3::RingPlace<S> ring;
  const int items = items_of(routes);
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
    if (item == 0) ptx::griddepcontrol_wait();
    e4m3::Columns16 x = rows.load(first), next = rows.load(second);
    // The warpgroup has finished with the rows before.
    if (item > 0) ptx::barrier_sync(e4m3::group_barrier(group), kGroupThreads);
#pragma unroll 1
    for (int i = thread; i < pieces; i += kGroupThreads) {
      rows.store(i, x, item_tiles, shared);
      x = next;
      next = rows.load(find(i + 2 * kGroupThreads));
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(e4m3::group_barrier(group), kGroupThreads);
    for (int slot = 0; slot < at_once; ++slot, ++item) {
      const auto* tiles = shared.x + slot * item_tiles;
      e4m3::hand_over(
          e4m3::multiply_item<kWidth>(p.routed, ptx::make_smem_desc_128B(ptx::smem_address(tiles)),
                                      shared.x_scale + slot * item_tiles, group, ring, shared),
          item, shared);
    }
  }
}

// An epilogue warp: a strip. Lane 4g + 2h + t has row g + 8h of token t.
template <int kTokens, class S>
__device__ void sum_entries(const DownParams& p, S& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, token = lane % 2, half = lane / 2 % 2;
  const int strip = static_cast<int>(threadIdx.x) / kWarp - e4m3::kMathWarps;
  const int row =
      static_cast<int>(blockIdx.x) * kDownRows + strip * gemm::kUnitRows + lane / 4 + 8 * half;
  const bool stores = token < kTokens && row < p.routed.rows;
  const Routes& routes = shared.own;
  ptx::barrier_sync(kListedBarrier, kListedThreads);
  const float scale2 =  // of entry `lane`
      lane < routes.count ? p.routed.scale2[routes.entries[lane].expert * 3 + 2] * p.routed.factor
                          : 0;
  ptx::griddepcontrol_wait();
  const float shared_y = stores ? to_float(p.shared_y[token * p.shared_stride + row]) : 0;
  float sum = 0;
  for (int item = 0; item < items_of(routes); ++item) {
    const int buffer = item % e4m3::kBuffers;
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

template <int K, ImageScale kScale, int kTokens>
__global__ void __launch_bounds__(kThreads, 1) down_kernel(const __grid_constant__ DownParams p) {
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<Shared<K, kScale>*>(ptx::dynamic_smem());
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  clear(shared);
  e4m3::init_barriers(shared);
  if (warp < e4m3::kMathWarps) {
    ptx::setmaxnreg_inc<e4m3::kMathRegisters>();
    return down_math<kTokens>(p, shared);
  }
  ptx::setmaxnreg_dec<e4m3::kOtherRegisters>();
  if (warp < kListWarp) return sum_entries<kTokens>(p, shared);
  route(p.router, kTokens, warp == kListWarp, shared.own);
  if (warp == kListWarp && threadIdx.x % kWarp == 0) copy_strips(p.routed, shared);
  ptx::griddepcontrol_wait();
}

}  // namespace dsv4::moe_kernel::sm90_fused
