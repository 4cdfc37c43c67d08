// The sequences of a prefill batch, and the square blocks that their attention is cut into. Shared
// by block_sparse_attention, xattn_scores and xattn_select, on host and device.
//
// Sequence i has the queries cu_q[i] .. cu_q[i + 1] - 1 (rows of q) and the keys cu_kv[i] ..
// cu_kv[i + 1] - 1 (rows of k and v; with paged k and v only their number counts).
//
// Causal: query j of a sequence has position first_position + j, where first_position = keys -
// queries, and sees the keys at positions up to its own. The last query thus sees every key, which
// is what a chunk of a prompt needs. first_position may be negative; queries before position 0 see
// no key. Not causal: first_position = 0, and every query sees every key.
//
// Block I holds the positions I * block .. (I + 1) * block - 1, of queries and of keys. Blocks are
// aligned to positions and not to the first query, so a token is in the same block however its
// prompt is chunked, and the only block that the causal mask cuts is the one with I = J. Row r of
// scores and lists is the query block first_block() + r.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct PrefillBatch {
  ConstTensorView cu_q;   // [b + 1] I32, ascending from 0 to the rows of q
  ConstTensorView cu_kv;  // [b + 1] I32, ascending from 0
  bool causal = true;

  int64_t size() const { return cu_q.dim(0) - 1; }
};

// Rounds toward minus infinity; b > 0.
DSV4_HD constexpr int floor_div(int a, int b) {
  return a >= 0 ? a / b : -((b - 1 - a) / b);
}

struct PrefillSequence {
  int first_q, queries;  // rows of q
  int first_kv, keys;    // rows of k and v
  int first_position;    // of query 0
  bool causal;

  DSV4_HD constexpr int first_block(int block) const { return floor_div(first_position, block); }
  DSV4_HD constexpr int num_q_blocks(int block) const {
    if (queries == 0) return 0;
    return floor_div(first_position + queries - 1, block) - first_block(block) + 1;
  }
  DSV4_HD constexpr int num_k_blocks(int block) const { return (keys + block - 1) / block; }
  // Key blocks 0 .. n - 1 are what query block I sees.
  DSV4_HD constexpr int visible_blocks(int block, int query_block) const {
    const int all = num_k_blocks(block);
    if (!causal || query_block + 1 >= all) return all;
    return query_block < 0 ? 0 : query_block + 1;
  }
};

// cu_q, cu_kv: of the batch, wherever the caller can read.
DSV4_HD constexpr PrefillSequence prefill_sequence(const int* cu_q, const int* cu_kv, int i,
                                                   bool causal) {
  const int queries = cu_q[i + 1] - cu_q[i], keys = cu_kv[i + 1] - cu_kv[i];
  return {cu_q[i], queries, cu_kv[i], keys, causal ? keys - queries : 0, causal};
}

// Host memory only. Throws when the lengths are not ascending or end elsewhere than at the rows of
// q, or of k when `kv_rows` is not negative.
void check_lengths(const PrefillBatch& batch, int64_t q_rows, int64_t kv_rows);

// Where the key or value of a position lies: rows of [t_kv, h_kv, d], or pages of [pages,
// page_size, h_kv, d] that a table lists for every sequence. Strides in elements.
struct KvAddress {
  int64_t row_stride = 0, head_stride = 0;
  int64_t page_stride = 0;     // pages only
  const int* table = nullptr;  // pages only: [b, ...], else null
  int64_t table_stride = 0;
  int page_size = 0;

  DSV4_HD constexpr int64_t operator()(int sequence, int first_kv, int position, int head) const {
    const int64_t at_head = head * head_stride;
    if (table == nullptr) return (int64_t{first_kv} + position) * row_stride + at_head;
    const int page = table[sequence * table_stride + position / page_size];
    return page * page_stride + position % page_size * row_stride + at_head;
  }
};

// k or v of any of the ops, with its page table (empty: rows).
KvAddress kv_address(const ConstTensorView& kv, const ConstTensorView& page_table);

}  // namespace dsv4
