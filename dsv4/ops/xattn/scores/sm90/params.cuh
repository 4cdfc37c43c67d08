// A call of xattn_scores.h -> Params. Shared by the launch and the emulator's test.

#pragma once

#include <algorithm>

#include "dsv4/device/sm90/limits.h"
#include "dsv4/device/tma_map.h"
#include "dsv4/ops/xattn/scores/sm90/config.cuh"
#include "dsv4/ops/xattn/scores/sm90/plan.h"

namespace dsv4::xattn_scores_kernel::sm90 {

static_assert(kRows == kTileRows && kColumns == kTileColumns);

// [t, h, d], or pages of it; heads are adjacent.
template <class C, class MakeMap>
GroupMaps group_maps(const ConstTensorView& x, int64_t stride, int64_t box_groups,
                     const MakeMap& make_map) {
  const bool paged = x.rank == 4;
  const size_t rows = paged ? 1 : 0;
  const int64_t item = item_bytes(x.dtype), row_bytes = item * x.stride[rows], t = x.shape[rows];
  const auto map = [&](int64_t groups) {
    return make_map(TmaBox{.base = x.data,
                           .dtype = x.dtype,
                           .rank = 4,
                           .size = {x.dim(-2) * x.dim(-1), stride, groups, paged ? x.dim(0) : 1},
                           .stride = {item, row_bytes, stride * row_bytes,
                                      paged ? item * x.stride[0] : groups * stride * row_bytes},
                           .box = {C::kSlice, 1, box_groups, 1},
                           .swizzle = TmaSwizzle::k128});
  };
  return {map(ceil_div(t, stride)), map(t / stride), static_cast<int>(t % stride)};
}

// make_map(TmaBox) -> CUtensorMap. partials [ctas, kRows, partial_stride], maxima [ctas, column
// tiles, kRows]: not initialized.
template <class C, class MakeMap>
Params make_params(const XattnScoresArgs& args, float* partials, float* maxima,
                   const MakeMap& make_map) {
  const int64_t cluster = cluster_size(args), share = kColumns / cluster;
  const bool paged = !args.page_table.empty();
  const int64_t box_groups = paged ? std::min(share, args.k.dim(1) / args.stride) : share;
  return {
      .q = group_maps<C>(args.q, args.stride, kRows, make_map),
      .k = group_maps<C>(args.k, args.stride, box_groups, make_map),
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .causal = args.batch.causal,
      .stride = static_cast<int>(args.stride),
      .block = static_cast<int>(args.block),
      .sequences = static_cast<int>(args.batch.size()),
      .heads = static_cast<int>(args.q.dim(1)),
      .group = static_cast<int>(args.q.dim(1) / args.k.dim(-2)),
      .q_blocks = static_cast<int>(args.sums.dim(2)),
      .k_blocks = static_cast<int>(args.sums.dim(3)),
      .ctas = static_cast<int>(cluster),
      .d = static_cast<int>(args.q.dim(2)),
      .slices = static_cast<int>(args.q.dim(2) / C::kSlice),
      .row_tiles = static_cast<int>(row_tiles(args)),
      .num_items = static_cast<int>(args.batch.size() * args.q.dim(1) / cluster * row_tiles(args)),
      .page_table = paged ? args.page_table.as<int>() : nullptr,
      .table_stride = paged ? args.page_table.stride[0] : 0,
      .page_size = paged ? static_cast<int>(args.k.dim(1)) : 0,
      .box_groups = static_cast<int>(box_groups),
      .scale = args.scale / static_cast<float>(args.stride) * dsv4::sm90::kLog2E,
      .sums = args.sums.as<float>(),
      .partials = partials,
      .maxima = maxima,
      .partial_stride = static_cast<int>(partial_stride(args)),
      .column_tiles = static_cast<int>(column_tiles(args)),
  };
}

}  // namespace dsv4::xattn_scores_kernel::sm90
