// The two row lists of a query as one list without gaps, for kernels.
//
// Ids are compacted in list order before anything else is read, so that neither -1s between ids nor
// the long runs of them behind short lists cost more than their four bytes.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {

struct PoolPointer {
  const uint8_t* pages;  // floats if plain
  int64_t page_bytes;
  int page_entries;
  bool packed;
  KvLayout layout;
};

// Both lists of all queries; positions 0 .. window_length-1 are the window's.
struct RowLists {
  PoolPointer window, compressed;
  const int32_t *window_rows, *compressed_rows;  // [t, length]
  int64_t window_stride, compressed_stride;
  int window_length, compressed_length;

  DSV4_HD int length() const { return window_length + compressed_length; }
};

inline PoolPointer pool_pointer(const KvPool& pool) {
  return {.pages = reinterpret_cast<const uint8_t*>(pool.pages.data),
          .page_bytes = pool.pages.row_stride() * item_bytes(pool.pages.dtype),
          .page_entries = pool.page_entries,
          .packed = pool.packed(),
          .layout = pool.layout};
}

inline RowLists row_lists(const SparseMlaArgs& args) {
  RowLists lists{};
  const auto length = [](const KvList& list) {
    return list.rows.rank == 0 ? 0 : static_cast<int>(list.rows.dim(1));
  };
  lists.window_length = length(args.window);
  lists.compressed_length = length(args.compressed);
  if (lists.window_length > 0) {
    lists.window = pool_pointer(args.window.pool);
    lists.window_rows = args.window.rows.as<int32_t>();
    lists.window_stride = args.window.rows.row_stride();
  }
  if (lists.compressed_length > 0) {
    lists.compressed = pool_pointer(args.compressed.pool);
    lists.compressed_rows = args.compressed.rows.as<int32_t>();
    lists.compressed_stride = args.compressed.rows.row_stride();
  }
  return lists;
}

// A listed row in one int: id for the window, ~id for the compressed list. Its pool:
__device__ inline PoolPointer pool_of(const RowLists& lists, int32_t coded) {
  return coded >= 0 ? lists.window : lists.compressed;
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

// No row: also what ~id would be of an id that no pool is large enough for.
inline constexpr int32_t kNoRow = INT32_MIN;

// Position `position` of a query's list; kNoRow for a negative id and from `end` on.
__device__ inline int32_t listed_row(const RowLists& lists, int64_t query, int position, int end) {
  if (position >= end) return kNoRow;
  const bool window = position < lists.window_length;
  const int32_t id =
      window
          ? lists.window_rows[query * lists.window_stride + position]
          : lists.compressed_rows[query * lists.compressed_stride + position - lists.window_length];
  return id < 0 ? kNoRow : window ? id : ~id;
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
