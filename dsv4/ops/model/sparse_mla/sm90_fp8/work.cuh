// Work tiles: which query, heads and keys a CTA computes.
//
// A work tile is one query and one group of kHeads heads. Its list of keys (window positions, then
// compressed positions) is one split, or several, one for each CTA of a cluster; their partials are
// combined through distributed shared memory (combine.cuh).

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/sm90/tile_scheduler.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/config.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

__device__ inline int split_of_cta(const Params& p) {
  return p.cluster_size == 1 ? 0 : static_cast<int>(ptx::cluster_ctarank());
}

// Without splits, CTAs are persistent and process several work tiles. A cluster has one work tile:
// with more, its CTAs would have to synchronize between them.
__device__ inline int first_tile(const Params& p) {
  return p.cluster_size == 1 ? static_cast<int>(blockIdx.x) : static_cast<int>(ptx::clusterid_x());
}
__device__ inline int num_tiles(const Params& p) {
  return p.queries * static_cast<int>(p.head_groups.divisor);
}
__device__ inline int next_tile(const Params& p, int index) {
  return p.cluster_size == 1 ? index + static_cast<int>(gridDim.x) : num_tiles(p);
}

// The members that follow from the index alone. Reads nothing that a previous kernel may write.
template <int kHeads>
__device__ WorkTile locate_tile(const Params& p, int index) {
  const sm90::QueryHeads at = sm90::locate_query_heads<kHeads>(p.head_groups, p.s_q, index);
  WorkTile work;
  work.index = index;
  work.first_head = at.first_head;
  work.request = at.request;
  work.query = at.query;
  return work;
}
// Splits have split_keys positions each. Those of an invariant plan begin at 0, split_keys, 2
// split_keys, 4 split_keys, ..: at the same positions in lists of any length.
__device__ inline int split_begin(const Params& p, int split) {
  const int keys = static_cast<int>(p.split_keys.divisor);
  if (!p.invariant) return split * keys;
  return split == 0 ? 0 : keys << (split - 1);
}
// Splits of a list that are not empty, at least 1.
__device__ inline int splits_of(const Params& p, int length) {
  if (length <= 0) return 1;
  const auto full = static_cast<int>(p.split_keys.divide(length - 1));
  if (!p.invariant) return full + 1;
  return full == 0 ? 1 : 33 - __clz(full);
}

// The other members: the range of keys, from the lengths of the lists.
__device__ inline void read_lengths(const Params& p, WorkTile& work) {
  work.window_indices = num_indices(p.window.list, work.request);
  work.window = max(work.window_indices, p.window_positions);
  const int length = work.window + num_indices(p.compressed.list, work.request);
  work.num_splits = splits_of(p, length);
  work.begin = min(length, split_begin(p, split_of_cta(p)));
  work.end = min(length, split_begin(p, split_of_cta(p) + 1));
}

template <int kHeads>
__device__ WorkTile make_tile(const Params& p, int index) {
  WorkTile work = locate_tile<kHeads>(p, index);
  read_lengths(p, work);
  return work;
}

// The indices of a query in one of the two lists.
__device__ inline const int32_t* first_index(const ListPointer& list, const WorkTile& work) {
  return list.indices + work.request * list.request_stride + work.query * list.query_stride;
}
// The index at a list position, or -1. Below work.window it refers to the window's pool.
__device__ inline int index_at(const Params& p, const WorkTile& work, int position) {
  if (position < work.window_indices) return first_index(p.window.list, work)[position];
  if (position < work.window) return -1;
  return first_index(p.compressed.list, work)[position - work.window];
}
__device__ inline bool is_valid(const PagedList& list, int index) {
  return static_cast<unsigned>(index) < static_cast<unsigned>(list.list.pool.num_rows);
}

__device__ inline int64_t offset_of(const QueryStrides& strides, const WorkTile& work, int head) {
  return work.request * strides.request + work.query * strides.query +
         (work.first_head + head) * strides.head;
}

struct EntryPointers {
  const uint8_t *entry, *scales;
};
template <class KvFormat>
__device__ EntryPointers find_entry(const PagedList& list, uint32_t index) {
  constexpr KvLayout kLayout = KvFormat::kLayout;
  const uint32_t entries = list.page_entries.divisor, page = list.page_entries.divide(index);
  const uint8_t* base = list.list.pool.pages + page * list.list.pool.page_bytes;
  const uint32_t entry = index - page * entries;
  return {base + kLayout.entry_offset(entry), base + kLayout.scale_offset(entries, entry)};
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
