// A call of block_sparse_attention.h -> Params. Shared by the launch and the emulator's test.

#pragma once

#include <algorithm>

#include "dsv4/device/tma_map.h"
#include "dsv4/ops/xattn/attention/sm90/config.cuh"
#include "dsv4/ops/xattn/attention/sm90/plan.h"

namespace dsv4::block_sparse_attention_kernel::sm90 {

static_assert(kBlock == kBlockSize);

inline TmaBox q_box(const ConstTensorView& q) {
  return {.base = q.data,
          .dtype = q.dtype,
          .rank = 3,
          .size = {q.dim(2), q.dim(1), q.dim(0)},
          .stride = {2, 2 * q.stride[1], 2 * q.stride[0]},
          .box = {kPanel, 1, kBlock},
          .swizzle = TmaSwizzle::k128};
}

// [t, h, d] is one page of t rows.
inline TmaBox kv_box(const ConstTensorView& kv, int64_t box_rows) {
  const bool paged = kv.rank == 4;
  const size_t rows = paged ? 1 : 0;
  const int64_t row_bytes = 2 * kv.stride[rows], t = kv.shape[rows];
  return {
      .base = kv.data,
      .dtype = kv.dtype,
      .rank = 4,
      .size = {kv.dim(-1), kv.dim(-2), t, paged ? kv.dim(0) : 1},
      .stride = {2, 2 * kv.stride[rows + 1], row_bytes, paged ? 2 * kv.stride[0] : t * row_bytes},
      .box = {kPanel, 1, box_rows, 1},
      .swizzle = TmaSwizzle::k128};
}

// make_map(TmaBox) -> CUtensorMap. counter: one int, zero.
template <class C, class MakeMap>
Params make_params(const BlockSparseAttentionArgs& args, int* counter, const MakeMap& make_map) {
  const int64_t page_size = page_size_of(args);
  const int64_t box_rows = page_size == 0 ? C::kKeys : std::min<int64_t>(page_size, C::kKeys);
  const bool dense = args.lists.empty();
  return {
      .q = make_map(q_box(args.q)),
      .k = make_map(kv_box(args.k, box_rows)),
      .v = make_map(kv_box(args.v, box_rows)),
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .causal = args.batch.causal,
      .sequences = static_cast<int>(args.batch.size()),
      .heads = static_cast<int>(args.q.dim(1)),
      .group = static_cast<int>(args.q.dim(1) / args.k.dim(-2)),
      .q_blocks = static_cast<int>(q_blocks_of(args)),
      .counts = dense ? nullptr : args.lists.counts.as<int>(),
      .indices = dense ? nullptr : args.lists.indices.as<int>(),
      .slots = dense ? 0 : static_cast<int>(args.lists.indices.dim(3)),
      .page_table = page_size == 0 ? nullptr : args.page_table.as<int>(),
      .table_stride = page_size == 0 ? 0 : args.page_table.stride[0],
      .page_size = static_cast<int>(page_size),
      .box_rows = static_cast<int>(box_rows),
      .out = args.out.data,
      .out_row = args.out.stride[0],
      .out_head = args.out.stride[1],
      .lse = args.lse.empty() ? nullptr : args.lse.as<float>(),
      .lse_head = args.lse.empty() ? 0 : args.lse.stride[0],
      .scale = args.scale,
      .num_items = static_cast<int>(items_of(args)),
      .next_item = counter,
  };
}

}  // namespace dsv4::block_sparse_attention_kernel::sm90
