// Block scores on Hopper: shapes, parameters and shared memory.
//
//   item      128 groups of queries (rows) of one head, against all groups of keys they see
//   cluster   up to two CTAs with the same rows of as many query heads of one key head: slices
//             of K are multicast, each CTA loads its share of the rows. Items go to clusters in a
//             fixed order, longest first, back and forth
//   warps     warpgroup 0, warp 0: producer (TMA); warpgroups 1 and 2: consumers, 64 rows each
//   tile      256 columns; its product is S * d / kSlice steps: kSlice values of one token of
//             every key group, and of the mirrored token of every query group, through a 4-D view
//             [groups][S][heads * d] of the tensor as it is
//   softmax   running maximum and sum by row. The exponentials of a tile are added by key block,
//             relative to the maximum so far, and stored in the CTA's workspace; when the row's
//             maximum and sum are known at the end of the item, they are scaled and added by query
//             block
//   edges     groups that a sequence fills in part: their missing tokens are cleared in shared
//             memory after the copy, in both operands
//
// Barriers (stage = step % kStages, phase = step / kStages % 2):
//   full[s]   own producer and bytes of all CTAs     ->  consumers
//   free[s]   8 consumer warps of each of the CTAs   ->  every producer of the cluster
//
// Registers of a consumer: 128 accumulators.

#pragma once

#include <cuda.h>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/xattn/scores/groups.h"

namespace dsv4::xattn_scores_kernel::sm90 {

inline constexpr int kGroup = 128;  // threads of a warpgroup
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kGroup;
inline constexpr int kConsumerWarps = kConsumers * kGroup / kWarp;
inline constexpr int kRows = 128, kColumns = 256;  // of a tile
inline constexpr int kSliceRow = 128;              // bytes of a step of a row
inline constexpr int kStages = 4;
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

// kGroups: groups of S tokens in a block.
template <class Element, int kGroups>
struct Config {
  using T = Element;
  static constexpr int kSlice = kSliceRow / static_cast<int>(sizeof(T));  // values of a step
  static constexpr int kPerBlock = kGroups;
  static constexpr int kTileBlocks = kColumns / kPerBlock;  // key blocks of a tile
};

// A tensor [pages, page_size, heads, d] as [pages][groups][S][heads * d]; rows are one page. The
// last group of rows may have fewer than S tokens: only its first `tail` tokens are in the last
// group of `all`; the others use `whole`.
struct GroupMaps {
  CUtensorMap all, whole;
  int tail;
};

struct Params {
  GroupMaps q, k;
  const int *cu_q, *cu_kv;
  bool causal, f16;   // f16: else bf16
  int stride, block;  // S, and positions of a block: kPerBlock groups
  int sequences, heads, group, q_blocks, k_blocks;
  int ctas;                  // of a cluster
  int d, slices;             // slices of a token: d / kSlice
  int row_tiles, num_items;  // row tiles of a sequence at most; items of a cluster's heads
  const int* page_table;     // of k; null: rows
  int64_t table_stride;
  int page_size, box_groups;  // groups of k in a copy
  float scale;                // of a score, to powers of 2
  float* sums;
  float* partials;  // [CTAs, kRows, partial_stride]
  float* maxima;    // [CTAs, column tiles, kRows]
  int partial_stride, column_tiles;
};

struct Shared {
  alignas(1024) unsigned char q[kStages][kRows * kSliceRow];
  alignas(1024) unsigned char k[kStages][kColumns * kSliceRow];
  ptx::Mbarrier full[kStages], free[kStages];
  float2 rows[kRows];  // at the end of an item: maximum * scale, 1 / sum

  __device__ void init(int ctas) {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(1);
      free[i].init(ctas * kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
};

__device__ inline int stage(int step) {
  return step % kStages;
}
__device__ inline int phase(int step) {
  return step / kStages % 2;
}

// Named barriers; kOwnGroup + 1 is warpgroup 1's.
enum Barrier : int { kOwnGroup = 1, kKeysCleared = 3 };

// 128 rows of a head.
template <class C>
struct Item {
  int index, kv_head, head;
  PrefillSequence sequence;
  Groups groups;
  int block_row;  // row of `sums` of the first query block
  int first;      // group of row 0
  int rows;       // rows from 0 on that may be groups with a query
  int num_tiles;  // of columns

  // Item `round` of this cluster; num_tiles = 0: nothing to do. False: there is none.
  __device__ static bool get(const Params& params, int round, int cluster, int clusters, int rank,
                             Item& item) {
    const int n = round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
    if (round * clusters >= params.num_items) return false;
    item.num_tiles = 0;
    if (n >= params.num_items) return true;
    const int subsets = params.group / params.ctas, kv_heads = params.heads / params.group;
    const int subset = n % subsets;
    item.kv_head = n / subsets % kv_heads;
    item.index = n / subsets / kv_heads % params.sequences;
    const int tile = params.row_tiles - 1 - n / subsets / kv_heads / params.sequences;
    item.head = item.kv_head * params.group + subset * params.ctas + rank;
    item.sequence = prefill_sequence(params.cu_q, params.cu_kv, item.index, params.causal);
    item.groups = groups_of(item.sequence, params.stride);
    item.block_row = tile * (kRows / C::kPerBlock);
    item.first = (item.sequence.first_block(params.block) + item.block_row) * C::kPerBlock;
    const int end = min(item.first + kRows, item.groups.end_row);
    item.rows = end - item.first;
    if (item.rows > 0) {
      item.num_tiles = (item.groups.visible(end - 1) + kColumns - 1) / kColumns;
    }
    return true;
  }
};

}  // namespace dsv4::xattn_scores_kernel::sm90
