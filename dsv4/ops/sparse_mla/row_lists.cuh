// The two row lists of a query as one list without gaps, for kernels.
//
// Ids are compacted in list order before anything else is read, so that neither -1s between ids nor
// the long runs of them behind short lists cost more than their four bytes. Slots behind a list's
// length are not read at all.

#pragma once

#include <algorithm>

#include "dsv4/base/divisor.h"
#include "dsv4/device/math.cuh"
#include "dsv4/ops/sparse_mla/by_request.h"

namespace dsv4 {

struct PoolPointer {
  const uint8_t* pages;
  int64_t page_bytes;  // from page to page
  int32_t num_rows;
  int page_entries;
  DType dtype;  // U8: packed
  KvLayout layout;
};

// One list of all queries.
struct ListPointer {
  PoolPointer pool;
  const int32_t* rows;  // [b, s_q, slots]
  int64_t request_stride, slot_stride;
  const int32_t* lengths;  // [b], or null
  int slots;               // 0: no such list
};

struct RowLists {
  ListPointer window, compressed;
  int s_q;

  // Of the longest list that a query can have.
  DSV4_HD int length() const { return window.slots + compressed.slots; }
};

inline PoolPointer pool_pointer(const KvPool& pool) {
  return {.pages = reinterpret_cast<const uint8_t*>(pool.pages.data),
          .page_bytes = pool.pages.row_stride() * item_bytes(pool.pages.dtype),
          .num_rows = static_cast<int32_t>(std::min<int64_t>(pool.num_rows(), INT32_MAX)),
          .page_entries = pool.page_entries,
          .dtype = pool.pages.dtype,
          .layout = pool.layout};
}

inline ListPointer list_pointer(const KvList& list) {
  if (listed(list) == 0) return {};
  return {.pool = pool_pointer(list.pool),
          .rows = list.rows.as<int32_t>(),
          .request_stride = list.rows.stride[0],
          .slot_stride = list.rows.stride[1],
          .lengths = list.lengths.empty() ? nullptr : list.lengths.as<int32_t>(),
          .slots = static_cast<int>(listed(list))};
}

// A list with the divisor that finds an id's page.
struct PagedList {
  ListPointer list;
  Divisor page_entries;
};
inline PagedList paged_list(const KvList& list) {
  if (list.rows.rank == 0 || list.rows.numel() == 0) return {};  // nobody has checked its pool
  return {.list = list_pointer(list), .page_entries = Divisor(list.pool.page_entries)};
}

// `args` as by_request() gives them.
inline RowLists row_lists(const SparseMlaArgs& args) {
  return {.window = list_pointer(args.window),
          .compressed = list_pointer(args.compressed),
          .s_q = static_cast<int>(args.q.dim(1))};
}

// Distances, in elements, in q, out, lse or max_logits.
struct QueryStrides {
  int64_t request, slot, head;

  __device__ int64_t at(int query, int s_q, int head_index) const {
    return query / s_q * request + query % s_q * slot + head_index * head;
  }
};
// [b, s_q, h, d]
inline QueryStrides row_strides(const TensorMeta& meta) {
  return {meta.stride[0], meta.stride[1], meta.stride[2]};
}
// [b, h, s_q]
inline QueryStrides sum_strides(const TensorMeta& meta) {
  return {.request = meta.stride[0], .slot = meta.stride[2], .head = meta.stride[1]};
}

// The two lists of one query up to their lengths, one behind the other.
struct QueryRows {
  const int32_t *window, *compressed;
  int window_length, compressed_length;
  int32_t window_limit, compressed_limit;  // rows of the pools

  __device__ int length() const { return window_length + compressed_length; }
};

__device__ inline int list_length(const ListPointer& list, int request) {
  return list.lengths == nullptr ? list.slots : max(0, min(list.slots, list.lengths[request]));
}

__device__ inline QueryRows query_rows(const RowLists& lists, int query) {
  const int request = query / lists.s_q, slot = query % lists.s_q;
  const ListPointer &window = lists.window, &compressed = lists.compressed;
  return {window.rows + request * window.request_stride + slot * window.slot_stride,
          compressed.rows + request * compressed.request_stride + slot * compressed.slot_stride,
          list_length(window, request),
          list_length(compressed, request),
          window.pool.num_rows,
          compressed.pool.num_rows};
}

// A listed row in one int: id for the window, ~id for the compressed list. Its pool:
__device__ inline PoolPointer pool_of(const RowLists& lists, int32_t coded) {
  return coded >= 0 ? lists.window.pool : lists.compressed.pool;
}
// Its place there.
struct Place {
  const uint8_t* page;
  int entry;
};
__device__ inline Place find_row(const PoolPointer& pool, int32_t coded) {
  const int row = coded >= 0 ? coded : ~coded, page = row / pool.page_entries;
  return {pool.pages + page * pool.page_bytes, row - page * pool.page_entries};
}

// No row. No id is coded like this: ids are below INT32_MAX.
inline constexpr int32_t kNoRow = INT32_MIN;

// Position `position` of a query's lists; kNoRow for an id that its pool does not have, and from
// `end` on.
__device__ inline int32_t listed_row(const QueryRows& rows, int position, int end) {
  if (position >= end) return kNoRow;
  const bool window = position < rows.window_length;
  const int32_t id =
      window ? rows.window[position] : rows.compressed[position - rows.window_length];
  const int32_t limit = window ? rows.window_limit : rows.compressed_limit;
  return id < 0 || id >= limit ? kNoRow : window ? id : ~id;
}

// Appends the threads' rows, in their order, to rows[count ...]; returns the new count. Called by
// the whole block; `sums`: a word per warp. The rows may be read after the next barrier.
template <int kThreads>
__device__ int append_rows(int32_t mine, int32_t* rows, int count, int* sums) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned valid = __ballot_sync(~0u, mine != kNoRow);
  __syncthreads();  // `sums` of the last call have been read
  if (lane == 0) sums[warp] = __popc(valid);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    before += w < warp ? sums[w] : 0;
    all += sums[w];
  }
  if (mine != kNoRow) rows[count + before + __popc(valid & ((1u << lane) - 1))] = mine;
  return count + all;
}

}  // namespace dsv4
