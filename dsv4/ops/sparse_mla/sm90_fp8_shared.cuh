// The shared memory of a block of sm90_fp8.cu.

#pragma once

#include <algorithm>

#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_work.cuh"

namespace dsv4::sm90_fp8 {

// Named barriers: of the computing warpgroups, of computing warpgroup w (kBarrierOne + w), of the
// one that gathers, of all when the first ids have been asked for.
constexpr int kBarrierBoth = 1, kBarrierOne = 2, kBarrierGather = 4, kBarrierIds = 5;

constexpr int kSeveral = -1;  // Shared::holder

// Of the reference. kFirst: nothing came before that would shrink.
enum class Move { kNone, kFirst, kLater };

// What a block knows of a work item beside q.
template <int kHeads>
struct Item {
  Work work;
  int too_large;  // work.item + 1: something of it does not fit f16
  // Exponent that weights are relative to, log2; head 8 n + 2j + i is at (kHeads / 4) j + 2 n + i.
  alignas(16) float reference[kHeads];
  int largest[kHeads];    // ordered_int of the largest logit seen, log2
  float sums[8][kHeads];  // of the weights of a warp's keys
};

// The values of a part are units, four values of every thread of a block: sm90_fp8_merge.cuh.
constexpr int units_of(int heads) {
  return heads / 8 * kOutTiles;
}
template <int kHeads>
constexpr int kUnits = units_of(kHeads);
constexpr int kUnitBytes = kConsumers * 8;
// Of the units of a part, neighbours that go the same way, and those that a block of a cluster
// merges (the last ones fewer or none).
constexpr int units_at_once(int heads) {
  return heads < 32 ? 1 : heads / 16;
}
template <int kHeads>
constexpr int kUnitsAtOnce = units_at_once(kHeads);
constexpr int units_of_block(int heads, int chunks) {
  const int all = units_of(heads) / units_at_once(heads);
  return (all + chunks - 1) / chunks * units_at_once(heads);
}
constexpr int most_part_bytes(int heads) {
  int most = 0;
  for (int chunks = 2; chunks <= kMaxChunks; ++chunks) {
    const int bytes = chunks * units_of_block(heads, chunks) * kUnitBytes;
    if (parts_fit(heads, chunks) && bytes > most) most = bytes;
  }
  return most;
}

template <class Row, int kHeads>
struct Shared {
  static constexpr int kChunks = (Row::kCodes + Row::kRope) / 64;  // of q
  // Of scales; of V4 one more than there are, as in memory.
  static constexpr int kGroups = kWidthV / Row::kGroup;
  static constexpr int kTileBytes = kHeads * 128;  // [heads, 64] of two bytes, make_smem_desc_128B
  // Of q, or of the parts that take its place.
  static constexpr int kTilesOfQuery =
      std::max(kChunks, (most_part_bytes(kHeads) + kTileBytes - 1) / kTileBytes);
  // As many as fit, and no more than hide the latency of memory.
  static constexpr int kSlotBytes = kSlotRows * (Row::kStride + 2 * kGroups + 1);
  static constexpr int kFree = kMaxShared - (kTilesOfQuery + 2) * kTileBytes - 8 * 1024;
  static constexpr int kSlots = kFree / kSlotBytes < 10 ? kFree / kSlotBytes : 10;

  // q by 64 dims: f16 where keys are codes, in the order that KeyFragments wants; bf16 for RoPE.
  // Behind the last product with it: parts that this block merges, [chunks, units_of_block, thread]
  // uint2.
  alignas(1024) uint8_t q[kTilesOfQuery][kTileBytes];
  alignas(1024) uint8_t weights[2][kTileBytes];  // [heads, 64 keys] f16 of the two tiles
  alignas(128) uint8_t ring[kSlots][kSlotRows * Row::kStride];
  // f16 scales of the rows of a slot, for their values: row r is at place 8 (r % 8 / 2) + 2 (r / 8)
  // + r % 2, so that a lane finds its four pairs together. For their keys they lie in the ring
  // (Row::kScalesAt).
  alignas(16) __half value_scales[kSlots][kGroups][kSlotRows];
  uint8_t rows[kSlots][kSlotRows];  // RowState
  // Two in turn: one warpgroup may still store an item when the other begins the next. Who begins
  // item i + 2 knows that both have q of item i + 1 behind them, and so all of item i.
  Item<kHeads> items[2];
  // What tile 0 or 1 of the pair has done to the reference, and how what came before it shrinks.
  alignas(16) float shrink[2][kHeads];
  Move moved[2];
  // What a warpgroup multiplies the values of a head with, in front of the output or of the merge;
  // of a part that is computed exactly its share, and what both divide by.
  alignas(16) float factor[2][kHeads];
  // Of an item that is cut: the block that stores it alone, or kSeveral; what they know of each
  // other's parts; what the sum of all parts is multiplied with.
  int holder;
  // Of a head of a part reference and sum of its softmax, two floats, and what f16 needs its values
  // divided by, a power of two.
  uint2 part_sums[kMaxChunks][kHeads];
  uint32_t part_divisors[kMaxChunks][kHeads];
  alignas(16) float last_factor[kHeads];
  // Threads arrive, not warps: as fast, and racecheck can follow.
  ptx::Mbarrier full[kSlots], empty[kSlots], weights_full[2], weights_empty[2];
  ptx::Mbarrier decided[2];  // moved, and what it leaves: Item::reference, shrink
  ptx::Mbarrier item_full;   // q and Item of an item that is not the block's first
  ptx::Mbarrier item_empty;  // all products with q of an item are done
  ptx::Mbarrier sums_full;   // Item::sums
  // Of an item that is cut, for the blocks of the cluster: q of all of them has made room for
  // parts; what all tell of their parts is there, counted in bytes; what comes of it for this block
  // (factor, last_factor, holder); the values of the parts, in bytes.
  ptx::Mbarrier room, summaries_full, weighed, parts_full;
};

// Integers in the order of the floats.
__device__ inline int ordered_int(float x) {
  const int bits = __float_as_int(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ inline float from_ordered_int(int x) {
  return __int_as_float(x >= 0 ? x : x ^ 0x7fffffff);
}

// Place of a head in Item::reference.
template <int kHeads>
__device__ int reference_place(int head) {
  return kHeads / 4 * (head % 8 / 2) + head / 8 * 2 + head % 2;
}
// Place of key k of 32 in Shared::value_scales.
__device__ inline int scale_place(int k) {
  return 8 * (k % 8 / 2) + 2 * (k / 8) + k % 2;
}

}  // namespace dsv4::sm90_fp8
