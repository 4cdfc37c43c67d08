// Work items, as both halves of a block walk them.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_shared.cuh"

namespace dsv4::mla90 {

__device__ inline int tiles_of(int keys) {
  return (keys + kTile - 1) / kTile;
}

struct Work {
  int request, query;  // query: of the request
  int first_head;
  int group;       // query and head group, counted through
  int item;
  int begin, end;  // list positions
  int window;      // of them positions below this are window slots
  int parts;       // chunks of this query that are not empty, at least 1

  __device__ int tiles() const { return tiles_of(end - begin); }
};

__device__ inline int effective_slots(const Segment& segment, int request) {
  if (segment.lengths == nullptr) return segment.slots;
  return max(0, min(segment.slots, segment.lengths[request]));
}

// Item number `item`; heads of a group fastest, so that blocks that run together share rows.
template <int kHeads>
__device__ Work find_work(const Params& p, int item) {
  Work work;
  const int head_group = item % p.head_groups, rest = item / p.head_groups;
  const int chunk = rest % p.chunks, query = rest / p.chunks;
  work.item = item;
  work.group = query * p.head_groups + head_group;
  work.first_head = head_group * kHeads;
  work.request = query / p.queries_per_request;
  work.query = query - work.request * p.queries_per_request;
  work.window = effective_slots(p.window, work.request);
  const int length = work.window + effective_slots(p.compressed, work.request);
  work.parts = max(1, (length + p.chunk - 1) / p.chunk);
  work.begin = min(length, chunk * p.chunk);
  work.end = min(length, work.begin + p.chunk);
  return work;
}

// Whether there is nothing to do: the other chunks cover the list.
__device__ inline bool is_idle(const Params& p, const Work& work) {
  return work.begin == work.end && work.item / p.head_groups % p.chunks > 0;
}

__device__ inline int num_items(const Params& p) {
  return p.queries * p.head_groups * p.chunks;
}

// Id of a list position, coded: id for the window, ~id for the compressed list; kNoRow for none.
constexpr int kNoRow = INT32_MIN;
__device__ inline int listed_row(const Params& p, const Work& work, int position) {
  if (position >= work.end) return kNoRow;
  const bool window = position < work.window;
  const Segment& segment = window ? p.window : p.compressed;
  const int slot = window ? position : position - work.window;
  const int id = segment.rows[work.request * segment.rows_batch_stride +
                              work.query * segment.rows_query_stride + slot];
  if (static_cast<unsigned>(id) >= static_cast<unsigned>(segment.num_rows)) return kNoRow;
  return window ? id : ~id;
}

struct RowPlace {
  const uint8_t *entry, *scales;
};
template <class Row>
__device__ RowPlace find_row(const Params& p, int coded) {
  const Segment& segment = coded >= 0 ? p.window : p.compressed;
  const int id = coded >= 0 ? coded : ~coded;
  const int page = segment.entries.divide(id), entry = id - page * segment.page_entries;
  const uint8_t* base = segment.pages + page * segment.page_bytes;
  return {base + Row::entry_offset(entry), base + Row::scale_offset(segment.page_entries, entry)};
}

}  // namespace dsv4::mla90
