// Work items, as both halves of a block walk them.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_rows.cuh"

namespace dsv4::sm90_fp8 {

__device__ inline int tiles_of(int keys) {
  return (keys + kTile - 1) / kTile;
}

struct Work {
  int item;
  int request, query;  // query: of the request
  int first_head;
  int begin, end;  // list positions of this block
  int window;      // of them positions below this are of the window, of which
  int listed;      // so many are in its list
  int parts;       // chunks of this query that are not empty, at least 1

  __device__ int tiles() const { return tiles_of(end - begin); }
};

// A block's items. Of a grid that cuts them every cluster has one: their blocks would wait for each
// other between two.
__device__ inline int chunk_of_block(const Params& p) {
  return p.chunks == 1 ? 0 : static_cast<int>(ptx::cluster_ctarank());
}
__device__ inline int first_item(const Params& p) {
  return p.chunks == 1 ? static_cast<int>(blockIdx.x) : static_cast<int>(ptx::clusterid_x());
}
__device__ inline int num_items(const Params& p) {
  return p.queries * static_cast<int>(p.head_groups.divisor);
}
__device__ inline int next_item(const Params& p, int item) {
  return p.chunks == 1 ? item + static_cast<int>(gridDim.x) : num_items(p);
}

// What an item is, from nothing that a kernel before may have written. Heads of a group are
// fastest, so that blocks that run together share rows.
template <int kHeads>
__device__ Work place_work(const Params& p, int item) {
  Work work;
  const uint32_t query = p.head_groups.divide(item);
  work.item = item;
  work.first_head = static_cast<int>(item - query * p.head_groups.divisor) * kHeads;
  work.request = static_cast<int>(p.s_q.divide(query));
  work.query = static_cast<int>(query - work.request * p.s_q.divisor);
  return work;
}
// The rest.
__device__ inline void measure(const Params& p, Work& work) {
  work.listed = list_length(p.window.list, work.request);
  work.window = max(work.listed, p.window_room);
  const int chunk = static_cast<int>(p.chunk.divisor);
  const int length = work.window + list_length(p.compressed.list, work.request);
  work.parts = max(1, static_cast<int>(p.chunk.divide(length + chunk - 1)));
  work.begin = min(length, chunk_of_block(p) * chunk);
  work.end = min(length, work.begin + chunk);
}

template <int kHeads>
__device__ Work find_work(const Params& p, int item) {
  Work work = place_work<kHeads>(p, item);
  measure(p, work);
  return work;
}

// The ids of a query in one of its lists.
__device__ inline const int32_t* first_id(const ListPointer& list, const Work& work) {
  return list.rows + work.request * list.request_stride + work.query * list.slot_stride;
}
// What a query's lists have at a position; below work.window it is a row of the window's pool.
__device__ inline int listed_id(const Params& p, const Work& work, int position) {
  if (position < work.listed) return first_id(p.window.list, work)[position];
  if (position < work.window) return -1;
  return first_id(p.compressed.list, work)[position - work.window];
}
__device__ inline bool is_row(const PagedList& rows, int id) {
  return static_cast<unsigned>(id) < static_cast<unsigned>(rows.list.pool.num_rows);
}

__device__ inline int64_t offset_of(const QueryStrides& strides, const Work& work, int head) {
  return work.request * strides.request + work.query * strides.slot +
         (work.first_head + head) * strides.head;
}

struct RowPlace {
  const uint8_t *entry, *scales;
};
template <class Row>
__device__ RowPlace find_row(const PagedList& rows, uint32_t id) {
  constexpr KvLayout kLayout = Row::kLayout;
  const uint32_t entries = rows.page_entries.divisor, page = rows.page_entries.divide(id);
  const uint8_t* base = rows.list.pool.pages + page * rows.list.pool.page_bytes;
  const uint32_t entry = id - page * entries;
  return {base + kLayout.entry_offset(entry), base + kLayout.scale_offset(entries, entry)};
}

}  // namespace dsv4::sm90_fp8
