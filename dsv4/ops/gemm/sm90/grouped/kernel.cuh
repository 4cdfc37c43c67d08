// Products of many token-expert pairs with kernel images, on Hopper: gate and up with SwiGLU and
// Q8, and down, in one launch; or one of the two, with h as it is between them.
//
// Problem    out^T [256 image rows, pairs of one expert] = W x'^T in f16 (k-bit weights), bf16
//            (FP4) or e4m3 (MXFP4 whose exponents have a narrow range), sums in f32
// Bound      the tensor cores from about 64 pairs an expert on (2,048 / N weights a clock and
//            SM), decoding below (30 weights a clock), then the bytes of the weights
// Tiles      an item is 256 rows x 16 .. 128 columns and all of K, in steps of 64; in e4m3 128 rows
//            after the other 128, in steps of 128. The items of gate and up come first, then those
//            of down. The row tiles of a tile are neighbors, so that CTAs that run together read
//            its rows of x from L2. An item of down waits for those of gate and up of its tile, so
//            all CTAs have to run together: one an SM
// Roles      warps 0 - 7: consumers, two warpgroups of two blocks of 64 rows (in e4m3 of one) |
//            warps 8 - 11: epilogue, while the consumers compute the next item | warp 12: codes |
//            warp 13: x
// Barriers   code_full[s]    1 + bytes  producer | consumers
//            code_empty[s]   8          consumer warps, when the unit is in registers | producer
//            x_full[j]       1 + bytes  producer | consumers
//            x_empty[j]      8          consumer warps, after products of both blocks | producer
//            staging_full    8          consumer warps | epilogue
//            staging_empty   4          epilogue warps | consumers
//            named 1         128        epilogue, before it counts an item as done
// Registers  208 of consumers, 56 of the epilogue, 40 of producers; no spills but five words with
//            folded scales
// Smem       x 64 KB, staging 64 KB, codes 2 to 4 stages of 18 to 43 KB; with scales of blocks x 84
//            KB, staging 24 KB, totals 24 KB, codes 5 to 8 stages of 9 to 17 KB
//
// Order of additions, for every tile and grid: k ascending, groups of 16 by the tensor core into
// one accumulator; in e4m3 groups of 32 into one of 128, which is added in f32; with scales of
// blocks as in_blocks.cuh says. A column does not see the others, so a pair has the same bits in
// any batch.

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/gemm/sm90/grouped/consumer.cuh"
#include "dsv4/ops/gemm/sm90/grouped/epilogue.cuh"
#include "dsv4/ops/gemm/sm90/grouped/in_blocks.cuh"
#include "dsv4/ops/gemm/sm90/grouped/producer.cuh"
#include "dsv4/ops/gemm/sm90/grouped/promoted.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_folded.cuh"

namespace dsv4::gemm::grouped {

template <class Weights>
__device__ void initialize(const Params& p, Shared<Weights>& shared) {
  fill_table_copies(p.gate_up.table, shared.tables[0]);
  fill_table_copies(p.down.table, shared.tables[1]);
  if (threadIdx.x == 0) {
    for (ptx::Mbarrier& b : shared.code_full) b.init(1);
    for (ptx::Mbarrier& b : shared.code_empty) b.init(kConsumerWarps);
    for (ptx::Mbarrier& b : shared.x_full) b.init(1);
    for (ptx::Mbarrier& b : shared.x_empty) b.init(kConsumerWarps);
    shared.staging_full.init(kConsumerWarps);
    shared.staging_empty.init(kEpilogueWarps);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

template <int kN, class Weights>
__device__ void compute_sums(const Params& p, const Item& item, Shared<Weights>& shared,
                             Place& at) {
  const Product& product = item.down ? p.down : p.gate_up;
  Sums<kN> sums;
  multiply<kN>(product.chunks, typename Weights::Table(shared.tables[item.down ? 1 : 0]), shared,
               at, sums);
  const float* const scale2 = p.scale2 + item.tile.expert * 3;
  stage<kN>(product.factor * scale2[item.down ? 2 : 0], product.factor * scale2[item.down ? 2 : 1],
            sums, shared, at);
}

template <int kN, class Weights>
__device__ void compute_promoted(const Params& p, const Item& item, Shared<Weights>& shared,
                                 Place& at) {
  const Product& product = item.down ? p.down : p.gate_up;
  const int expert = item.tile.expert * 3, first = item.down ? 2 : 0, second = item.down ? 2 : 1;
  const int largest = product.exponents[expert + first],
            largest_of_second = product.exponents[expert + second];
  const float low = folded_factor(largest) * p.scale2[expert + first],
              high = folded_factor(largest_of_second) * p.scale2[expert + second];
  const typename Weights::Table table(largest, largest_of_second);
#pragma unroll 1
  for (int pass = 0; pass < kPasses<Weights>; ++pass) {
    float sums[kN / 2];
    multiply_promoted<kN>(product.chunks, table, shared, at, sums);
    stage_pass<kN>(pass, low, high, sums, shared, at);
  }
}

template <int kN, class Weights>
__device__ void compute_in_blocks(const Params& p, const Item& item, Shared<Weights>& shared,
                                  Place& at) {
  const Product& product = item.down ? p.down : p.gate_up;
  const float* const scale2 = p.scale2 + item.tile.expert * 3;
  const typename Weights::Table table(shared.tables[item.down ? 1 : 0]);
#pragma unroll 1
  for (int pass = 0; pass < kPasses<Weights>; ++pass) {
    float total[kN / 2];
    multiply_in_blocks<kN>(product.chunks, table, shared, at, total);
    stage_pass<kN>(pass, product.factor * scale2[item.down ? 2 : 0],
                   product.factor * scale2[item.down ? 2 : 1], total, shared, at);
  }
}

template <int kN, class Weights>
__device__ void compute(const Params& p, const Item& item, Shared<Weights>& shared, Place& at) {
  if constexpr (kScalesBlocks<Weights>) {
    compute_in_blocks<kN>(p, item, shared, at);
  } else if constexpr (kXForm<Weights> == XForm::kE4m3) {
    compute_promoted<kN>(p, item, shared, at);
  } else {
    compute_sums<kN>(p, item, shared, at);
  }
}

// The items of a product, class by class. Each product and class has a loop of its own: where they
// are branches of one loop, ptxas finds no registers for products in flight (C7512).
template <int kN, class Weights>
__device__ void compute_classes(const Params& p, bool down, Walk& walk, Shared<Weights>& shared,
                                Place& at) {
  constexpr Tiling kTiles = kTiling<Weights>;
  walk.visit(p, down, kTiles.class_of(kN),
             [&](const Item& item) { compute<kN>(p, item, shared, at); });
  if constexpr (kN > kTiles.step) compute_classes<kN - kTiles.step>(p, down, walk, shared, at);
}

template <class Weights>
__global__ void __launch_bounds__(kThreads, 1) grouped_kernel(const __grid_constant__ Params p) {
  using S = Shared<Weights>;
  static_assert(sizeof(S) <= sm90::kMaxSmem);
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  initialize(p, shared);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarp, 0);
  if (warp < kConsumerWarps) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Place at;
    Walk walk;
    compute_classes<kTiling<Weights>.most>(p, false, walk, shared, at);
    compute_classes<kTiling<Weights>.most>(p, true, walk, shared, at);
  } else if (warp < kCodesWarp) {
    ptx::setmaxnreg_dec<kEpilogueRegisters>();
    int index = 0;
    Walk().visit_all(p, [&](const Item& item) { finish(p, item, index++, shared); });
  } else {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (warp == kCodesWarp && threadIdx.x % kWarp == 0) copy_codes(p, shared);
    if (warp == kXWarp && threadIdx.x % kWarp == 0) copy_x(p, shared);
  }
}

}  // namespace dsv4::gemm::grouped
