// The lists and strides of a call of sparse_mla.h, as its kernels take them (index_lists.cuh).

#pragma once

#include <algorithm>

#include "dsv4/ops/model/sparse_mla/index_lists.cuh"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

namespace dsv4 {

inline PoolPointer pool_pointer(const KvPool& pool) {
  return {.pages = reinterpret_cast<const uint8_t*>(pool.pages.data),
          .page_bytes = pool.pages.row_stride() * item_bytes(pool.pages.dtype),
          .num_rows = static_cast<int32_t>(std::min<int64_t>(pool.num_rows(), INT32_MAX)),
          .page_entries = pool.page_entries,
          .dtype = pool.pages.dtype,
          .layout = pool.layout};
}

inline ListPointer list_pointer(const KvList& list) {
  if (list.topk() == 0) return {};
  return {.pool = pool_pointer(list.pool),
          .indices = list.indices.as<int32_t>(),
          .request_stride = list.indices.stride[0],
          .query_stride = list.indices.stride[1],
          .topk_length = list.topk_length.empty() ? nullptr : list.topk_length.as<int32_t>(),
          .topk = static_cast<int>(list.topk())};
}

inline PagedList paged_list(const KvList& list) {
  if (list.indices.rank == 0 || list.indices.numel() == 0) return {};  // its pool was not checked
  return {.list = list_pointer(list), .page_entries = Divisor(list.pool.page_entries)};
}

inline IndexLists index_lists(const SparseMlaArgs& args) {
  return {.window = list_pointer(args.window),
          .compressed = list_pointer(args.compressed),
          .s_q = static_cast<int>(args.q.dim(1))};
}

// [b, s_q, h, d]
inline QueryStrides query_strides(const TensorMeta& meta) {
  return {meta.stride[0], meta.stride[1], meta.stride[2]};
}
// [b, h, s_q]
inline QueryStrides lse_strides(const TensorMeta& meta) {
  return {.request = meta.stride[0], .query = meta.stride[2], .head = meta.stride[1]};
}

}  // namespace dsv4
