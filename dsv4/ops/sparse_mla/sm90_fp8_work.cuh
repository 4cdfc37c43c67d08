// Work items, as both halves of a block walk them.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_shared.cuh"

namespace dsv4::mla90 {

__device__ inline int tiles_of(int keys) {
  return (keys + kTile - 1) / kTile;
}

struct Work {
  int item;
  int request, query;  // query: of the request
  int first_head;
  int begin, end;  // list positions of this block
  int window;      // of them positions below this are window slots
  int parts;       // chunks of this query that are not empty, at least 1

  __device__ int tiles() const { return tiles_of(end - begin); }
};

// A block's items: those of its cluster.
__device__ inline int chunk_of_block(const Params& p) {
  return p.chunks == 1 ? 0 : static_cast<int>(ptx::cluster_rank());
}
__device__ inline int first_item(const Params& p) {
  return p.chunks == 1 ? static_cast<int>(blockIdx.x) : static_cast<int>(ptx::cluster_id());
}
__device__ inline int next_item(const Params& p, int item) {
  return item + static_cast<int>(p.chunks == 1 ? gridDim.x : ptx::num_clusters());
}
__device__ inline int num_items(const Params& p) {
  return p.queries * p.head_groups;
}

__device__ inline int effective_slots(const Segment& segment, int request) {
  if (segment.lengths == nullptr) return segment.slots;
  return max(0, min(segment.slots, segment.lengths[request]));
}

// Heads of a group are fastest, so that blocks that run together share rows.
template <int kHeads>
__device__ Work find_work(const Params& p, int item) {
  Work work;
  const int query = p.by_head_groups.divide(item), chunk = chunk_of_block(p);
  work.item = item;
  work.first_head = (item - query * p.head_groups) * kHeads;
  work.request = p.by_queries.divide(query);
  work.query = query - work.request * p.queries_per_request;
  work.window = effective_slots(p.window, work.request);
  const int length = work.window + effective_slots(p.compressed, work.request);
  work.parts = max(1, p.by_chunk.divide(length + p.chunk - 1));
  work.begin = min(length, chunk * p.chunk);
  work.end = min(length, work.begin + p.chunk);
  return work;
}

// What a query's list has at a position; below work.window it is a row of the window's pool.
__device__ inline int listed_id(const Params& p, const Work& work, int position) {
  if (position >= work.end) return -1;
  const bool window = position < work.window;
  const Segment& segment = window ? p.window : p.compressed;
  const int slot = window ? position : position - work.window;
  return segment.rows[work.request * segment.rows_batch_stride +
                      work.query * segment.rows_query_stride + slot];
}
__device__ inline bool is_row(const Segment& segment, int id) {
  return static_cast<unsigned>(id) < static_cast<unsigned>(segment.num_rows);
}

__device__ inline int64_t query_offset(const Params& p, const Work& work, int head) {
  return work.request * p.q_batch_stride + work.query * p.q_query_stride +
         (work.first_head + head) * p.q_head_stride;
}

struct RowPlace {
  const uint8_t *entry, *scales;
};
template <class Row>
__device__ RowPlace find_row(const Segment& segment, int id) {
  const int page = segment.entries.divide(id), entry = id - page * segment.page_entries;
  const uint8_t* base = segment.pages + page * segment.page_bytes;
  return {base + Row::entry_offset(entry), base + Row::scale_offset(segment.page_entries, entry)};
}

}  // namespace dsv4::mla90
