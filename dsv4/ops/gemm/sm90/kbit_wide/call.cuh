// A product as parameters of the kernel, and the kernels by K and the type of x, which are compiled
// one by one (kbit_wide_instance.cu). `make_map` makes a tensor map of a box: the driver's, or the
// emulator's.

#pragma once

#include <iterator>

#include "dsv4/device/tma_map.h"
#include "dsv4/ops/gemm/sm90/kbit_wide.h"
#include "dsv4/ops/gemm/sm90/kbit_wide/config.cuh"

namespace dsv4::gemm::kbit_wide {

template <int K, class X>
void launch_kbit_wide(Device& device, const Plan& plan, const Params& params);

// run.operator()<kGroups, kColumns>() for the tile.
template <int kIndex = 0, class Run>
void with_tile(const Tile& tile, const Run& run) {
  constexpr Tile kTile = kTiles[kIndex];
  if (tile.groups == kTile.groups && tile.columns == kTile.columns) {
    run.template operator()<kTile.groups, kTile.columns>();
  } else if constexpr (kIndex + 1 < std::size(kTiles)) {
    with_tile<kIndex + 1>(tile, run);
  }
}

// ordered_x: room for order_x.cuh, [units, tokens, 128] 16-bit values
template <class MakeMap>
Params make_params(const Product& p, const Plan& plan, const TensorView& ordered_x,
                   const MakeMap& make_map) {
  const WeightView& w = p.weight;
  Params params;
  params.codes = make_map(tma_rows(w.data.data, w.data.dtype, w.n, w.k / kBlock * w.bits,
                                   w.data.row_stride() * item_bytes(w.data.dtype), plan.tile.rows(),
                                   kUnitBlocks * w.bits, TmaSwizzle::kNone));
  params.scales =
      make_map(tma_rows(w.scale.data, DType::kU8, w.n, w.k / kBlock, w.scale.row_stride(),
                        plan.tile.rows(), kScaleColumns / kBlock, TmaSwizzle::kNone));
  params.codebook = w.codebook.as<float>();
  params.x = ordered_x.as<uint16_t>();
  params.out = p.out.data;
  params.out_stride = p.out.row_stride();
  params.out_dtype = p.out.dtype;
  params.n = static_cast<int>(w.n);
  params.tokens = static_cast<int>(p.x.dim(0));
  params.units = plan.units;
  params.rank_bits = plan.rank_bits;
  params.scale2 = w.scale2;
  return params;
}

}  // namespace dsv4::gemm::kbit_wide
