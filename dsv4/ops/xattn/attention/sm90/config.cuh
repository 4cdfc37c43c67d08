// Block-sparse attention on Hopper: shapes, parameters and shared memory.
//
//   CTA       128 queries (a query block) of one head; persistent, work tiles from a counter
//   warps     warpgroup 0: warp 0 loader (TMA), warp 1 scheduler; warpgroups 1 and 2: consumers, 64
//             queries each
//   tile      kKeys keys: S = Q K^T [64, kKeys] (SS wgmma), softmax, O += P V [64, d_v] (RS wgmma)
//   overlap   QK of a tile and PV of the tile before it run while softmax waits; the two consumers
//             alternate (named barriers), so one's softmax overlaps with the other's products; work
//             tiles, and Q where it fits, are in shared memory before their turn
//   order     key heads one after another, so that K and V stay in L2; within one the query blocks
//             descend, longest rows first; lists are walked from the diagonal to block 0, so only
//             the first tiles of a row are masked. A sort by list length loses more through L2 than
//             it gains: 611 to 587 TFLOP/s at 128K and density .5
//
// Barriers (stage = tile % kStages, phase = tile / kStages % 2; Q and work tiles in the same way):
//   q_full[s]   loader, bytes   ->  consumers        q_free[s]   8 consumer warps  ->  loader
//   k_full[s]   loader, bytes   ->  consumers        k_free[s]   8 consumer warps  ->  loader
//   v_full[s]   loader, bytes   ->  consumers        v_free[s]   8 consumer warps  ->  loader
//   work_full[s]  scheduler     ->  all others       work_free[s]  loader, 8 consumer warps
//                                                                  ->  scheduler
//
// Registers of a consumer: O d_v / 2, S kKeys / 2, P kKeys / 4.

#pragma once

#include <cuda.h>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/xattn/attention/prefill_batch.h"

namespace dsv4::block_sparse_attention_kernel::sm90 {

inline constexpr int kBlock = 128;  // queries and keys of a block
inline constexpr int kGroup = 128;  // threads of a warpgroup
inline constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kGroup;
inline constexpr int kConsumerWarps = kConsumers * kGroup / kWarp;
inline constexpr int kPanel = 64;             // columns of a swizzled row of 128 bytes
inline constexpr int kPanelRow = 2 * kPanel;  // bytes
inline constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

inline constexpr int kWorkSlots = 3;  // work tiles in shared memory: computed, loaded, next

template <class Element, int kWidth, int kValueWidth, int kTileKeys, int kNumStages, int kQueries>
struct Config {
  using T = Element;
  static constexpr int kD = kWidth, kDv = kValueWidth, kKeys = kTileKeys, kStages = kNumStages;
  static constexpr int kQStages = kQueries;
  static constexpr int kTilesPerBlock = kBlock / kKeys;
  static constexpr int kQBytes = kBlock * kD * 2, kKBytes = kKeys * kD * 2;
  static constexpr int kVBytes = kKeys * kDv * 2;
  static_assert(kD % kPanel == 0 && kDv % kPanel == 0 && kBlock % kKeys == 0);
};

struct Params {
  CUtensorMap q;     // [t_q, h_q, d], boxes of [kBlock, 1, kPanel]
  CUtensorMap k, v;  // [pages, page_size, h_kv, d], boxes of [1, box_rows, 1, kPanel]; rows: 1 page
  const int *cu_q, *cu_kv;
  bool causal;
  int sequences, heads, group, q_blocks;
  const int *counts, *indices;  // null: dense
  int slots;
  const int* page_table;  // null: rows
  int64_t table_stride;
  int page_size, box_rows;
  void* out;
  int64_t out_row, out_head;  // strides in elements
  float* lse;                 // or null
  int64_t lse_head;
  float scale;
  int num_items;
  int* next_item;  // the counter, zero at the start
};

// A query block of a head. Positions are those of its sequence.
struct WorkTile {
  int index, first_kv;  // sequence, and its first row of k and v
  int head, kv_head;
  int first;         // position of row 0
  int begin, end;    // positions that are queries of this call
  int row_shift;     // row of q = position + row_shift
  int num_tiles;     // of keys; 0: no key is seen; negative: no work is left
  int keys;          // of the sequence
  int last_tile;     // first key of the tile that is processed first
  int masked_tiles;  // that many tiles from last_tile down need the causal and the length mask
  int list_size;     // listed blocks that are seen
  int64_t list;      // where the list starts in Params::indices
};

template <class C>
struct Shared {
  // kD / kPanel panels of [kBlock, kPanel], swizzled
  alignas(1024) unsigned char q[C::kQStages][C::kQBytes];
  alignas(1024) unsigned char k[C::kStages][C::kKBytes];
  alignas(1024) unsigned char v[C::kStages][C::kVBytes];
  ptx::Mbarrier q_full[C::kQStages], q_free[C::kQStages];
  ptx::Mbarrier k_full[C::kStages], k_free[C::kStages], v_full[C::kStages], v_free[C::kStages];
  ptx::Mbarrier work_full[kWorkSlots], work_free[kWorkSlots];
  WorkTile work[kWorkSlots];

  __device__ void init() {
    for (int i = 0; i < C::kQStages; ++i) {
      q_full[i].init(1);
      q_free[i].init(kConsumerWarps);
    }
    for (int i = 0; i < C::kStages; ++i) {
      k_full[i].init(1);
      v_full[i].init(1);
      k_free[i].init(kConsumerWarps);
      v_free[i].init(kConsumerWarps);
    }
    for (int i = 0; i < kWorkSlots; ++i) {
      work_full[i].init(1);
      work_free[i].init(1 + kConsumerWarps);
    }
    ptx::fence_mbarrier_init();
  }
};

// Stage and phase of tile i in a ring of kStages.
template <int kStages>
__device__ int stage(int i) {
  return i % kStages;
}
template <int kStages>
__device__ int phase(int i) {
  return i / kStages % 2;
}

// Named barriers.
enum Barrier : int { kTurn0 = 1, kTurn1 = 2, kValuesCleared = 3 };

}  // namespace dsv4::block_sparse_attention_kernel::sm90
