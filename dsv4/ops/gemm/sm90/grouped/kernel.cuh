// Products of many token-expert pairs with kernel images of k-bit weights, on
// Hopper.
//
// Problem    out^T [256 image rows, pairs of one expert] = W x'^T, both in f16,
// sums in f32 Bound      the tensor cores from about 64 pairs an expert on
// (2,048 / N weights a clock and SM);
//            below, decoding (30 weights a clock), then the bytes of the
//            weights
// Tiles      an item is 256 rows x 16 .. 128 columns and all of K, in steps
// of 64. Gate and up's
//            items come first, then down's. A CTA takes the items blockIdx.x,
//            blockIdx.x + gridDim.x, ..; the row tiles of a tile are neighbors,
//            so that CTAs that run together read its rows of x from L2. All
//            CTAs have to run at the same time: an item of down waits for those
//            of gate and up of its tile
// Roles      warps 0 - 7: consumers, two warpgroups of two blocks of 64 rows |
// warp 8: codes |
//            warp 9: x
// Barriers   code_full[s]   1 + bytes  producer | consumers
//            code_empty[s]  8          consumer warps, after the unit is in
//            registers | producer x_full[j]      1 + bytes  producer |
//            consumers x_empty[j]     8          consumer warps, after the
//            products of both blocks | producer named 1        256 consumers,
//            in the epilogue
// Registers  232 of consumers, 40 of the others
// Smem       x 64 KB, staging of the epilogue 32 KB, codes 2 to 4 stages of 18
// to 43 KB
//
// Order of additions, for every tile and grid: k ascending, groups of 16 by the
// tensor core into one accumulator. A column does not see the others, so a pair
// has the same bits in any batch.

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/sm90/grouped/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/grouped/producer.cuh"

namespace dsv4::gemm::grouped {

template <class Weights>
__device__ void init_barriers(Shared<Weights>& shared) {
  if (threadIdx.x == 0) {
    for (ptx::Mbarrier& b : shared.code_full) b.init(1);
    for (ptx::Mbarrier& b : shared.code_empty) b.init(kConsumerWarps);
    for (ptx::Mbarrier& b : shared.x_full) b.init(1);
    for (ptx::Mbarrier& b : shared.x_empty) b.init(kConsumerWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

// The item with its number of columns as a constant.
template <class Weights, int kN = kColumnStep>
__device__ void compute(const Params& p, const Item& item, Shared<Weights>& shared, Place& at) {
  if constexpr (kN < kMostColumns) {
    if (item.tile.columns > kN) return compute<Weights, kN + kColumnStep>(p, item, shared, at);
  }
  const Product& product = item.down ? p.down : p.gate_up;
  Sums<kN> sums;
  multiply<kN>(product.chunks, typename Weights::Table(product.table), shared, at, sums);
  if (item.down) {
    StoreRows::finish<kN>(p, item, sums, shared);
  } else {
    StoreHidden::finish<kN>(p, item, sums, shared);
  }
}

template <class Weights>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Params p) {
  using S = Shared<Weights>;
  static_assert(sizeof(S) <= sm90::kMaxSmem);
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  init_barriers(shared);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (warp < kConsumerWarps) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Place at;
    for_each_item(p, [&](const Item& item) { compute(p, item, shared, at); });
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (warp == kConsumerWarps && threadIdx.x % kWarp == 0) copy_codes(p, shared);
    if (warp == kConsumerWarps + 1 && threadIdx.x % kWarp == 0) copy_x(p, shared);
  }
}

}  // namespace dsv4::gemm::grouped
