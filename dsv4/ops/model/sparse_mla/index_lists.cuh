// The two index lists of a query (window, then compressed), for kernels; make_index_lists.h makes
// them of a call.
//
// Kernels that compact them (append_entries) drop invalid indices before anything else is read, so
// that -1s between valid ones, and long runs of them at the end, cost only their four bytes.
// Indices past a list's topk_length are not read at all.

#pragma once

#include "dsv4/base/divisor.h"
#include "dsv4/device/math.cuh"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/tensor/dtype.h"

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
  const int32_t* indices;  // [b, s_q, topk]
  int64_t request_stride, query_stride;
  const int32_t* topk_length;  // [b], or null
  int topk;                    // 0: no such list
};

struct IndexLists {
  ListPointer window, compressed;
  int s_q;

  // Length of the longest list that a query can have.
  DSV4_HD int topk() const { return window.topk + compressed.topk; }
};

// A list with the divisor that finds the page of an index.
struct PagedList {
  ListPointer list;
  Divisor page_entries;
};

// Strides, in elements, of q, out, lse or max_logits.
struct QueryStrides {
  int64_t request, query, head;

  __device__ int64_t at(int query_index, int s_q, int head_index) const {
    return query_index / s_q * request + query_index % s_q * query + head_index * head;
  }
};
// The two lists of one query up to their topk_length.
struct QueryLists {
  const int32_t *window, *compressed;
  int window_length, compressed_length;
  int32_t window_limit, compressed_limit;  // rows of the pools

  __device__ int length() const { return window_length + compressed_length; }
};

// Indices of a request's queries that count.
__device__ inline int num_indices(const ListPointer& list, int request) {
  return list.topk_length == nullptr ? list.topk
                                     : max(0, min(list.topk, list.topk_length[request]));
}

__device__ inline QueryLists query_lists(const IndexLists& lists, int query_index) {
  const int request = query_index / lists.s_q, query = query_index % lists.s_q;
  const ListPointer &window = lists.window, &compressed = lists.compressed;
  return {
      window.indices + request * window.request_stride + query * window.query_stride,
      compressed.indices + request * compressed.request_stride + query * compressed.query_stride,
      num_indices(window, request),
      num_indices(compressed, request),
      window.pool.num_rows,
      compressed.pool.num_rows};
}

// A KV entry in one int: its index for the window, ~index for the compressed list. Its pool:
__device__ inline PoolPointer pool_of(const IndexLists& lists, int32_t entry) {
  return entry >= 0 ? lists.window.pool : lists.compressed.pool;
}
// Its place there.
struct EntryPlace {
  const uint8_t* page;
  int entry;
};
__device__ inline EntryPlace find_entry(const PoolPointer& pool, int32_t entry) {
  const int row = entry >= 0 ? entry : ~entry, page = row / pool.page_entries;
  return {pool.pages + page * pool.page_bytes, row - page * pool.page_entries};
}

// Invalid. No index gives this value: indices are below INT32_MAX.
inline constexpr int32_t kNoEntry = INT32_MIN;

// The entry at a position of a query's lists; kNoEntry for an index that its pool does not have,
// and from `end` on.
__device__ inline int32_t entry_at(const QueryLists& lists, int position, int end) {
  if (position >= end) return kNoEntry;
  const bool window = position < lists.window_length;
  const int32_t index =
      window ? lists.window[position] : lists.compressed[position - lists.window_length];
  const int32_t limit = window ? lists.window_limit : lists.compressed_limit;
  return index < 0 || index >= limit ? kNoEntry : window ? index : ~index;
}

// Appends the valid entries of the threads, in thread order, to entries[count
// ...]; returns the new count. Called by the whole CTA; `sums`: one int per
// warp. The entries may be read after the next barrier.
template <int kThreads>
__device__ int append_entries(int32_t mine, int32_t* entries, int count, int* sums) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const unsigned valid = __ballot_sync(~0u, mine != kNoEntry);
  __syncthreads();  // the `sums` of the previous call have been read
  if (lane == 0) sums[warp] = __popc(valid);
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    before += w < warp ? sums[w] : 0;
    all += sums[w];
  }
  if (mine != kNoEntry) entries[count + before + __popc(valid & ((1u << lane) - 1))] = mine;
  return count + all;
}

}  // namespace dsv4
