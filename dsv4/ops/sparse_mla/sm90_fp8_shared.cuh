// Row formats and the shared memory of a block of sm90_fp8.cu.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/ops/sparse_mla/sm90_fp8_params.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_plan.h"

namespace dsv4::sm90_fp8 {

constexpr int kMaxShared = 227 << 10;  // bytes of a block
// Where a block's dynamic shared memory begins when it has no other: behind what the system keeps.
constexpr uint32_t kSharedBase = 1024;
constexpr int kWidthV = 512;                   // values of a row
constexpr int kTile = 64;                      // keys that a warpgroup multiplies with q at a time
constexpr int kSlotRows = 32;                  // a slot of the ring of raw rows
constexpr int kGroupThreads = 128;             // a warpgroup
constexpr int kConsumers = 2 * kGroupThreads;  // two of them compute,
constexpr int kThreads = kConsumers + kGroupThreads;  // the third gathers

// What a row is in memory, its layout says. In shared memory its codes and RoPE values lie
// together, 16-byte piece c of row r at c ^ swizzle(r): eight rows' pieces are then in different
// banks.

// Codes and RoPE are key and value; scales lie at the end of the page.
struct RowV4 {
  static constexpr KvLayout kLayout{};
  static constexpr int kCodes = kLayout.nope, kRope = kLayout.rope, kGroup = kLayout.group();
  static constexpr bool kRopeIsValue = true, kFloatScales = false;
  static constexpr int kRowBytes = kCodes + 2 * kRope, kSwizzle = 4;
  static_assert(kRowBytes % 128 == 64, "what the swizzle is for");
  DSV4_HD static constexpr int swizzle(int row) { return row >> 1 & 3; }
  DSV4_HD static constexpr int source_piece(int piece) { return piece; }
};

// RoPE is key only; the scales lie between the codes and it, and are not among the pieces.
struct RowV32 {
  static constexpr KvLayout kLayout = kV32Layout;
  static constexpr int kCodes = kLayout.nope, kRope = kLayout.rope, kGroup = kLayout.group();
  static constexpr bool kRopeIsValue = false, kFloatScales = true;
  static constexpr int kRowBytes = kCodes + 2 * kRope, kSwizzle = 8;
  static_assert(kRowBytes % 128 == 0, "what the swizzle is for");
  DSV4_HD static constexpr int swizzle(int row) { return row & 7; }
  DSV4_HD static constexpr int source_piece(int piece) {
    return piece < kCodes / 16 ? piece : piece + static_cast<int>(kLayout.scale_bytes()) / 16;
  }
};

enum RowState : uint8_t { kNoKey = 0, kKey = 1, kKeyTooLarge = 2 };

template <class Row, int kHeads>
struct Shared {
  static constexpr int kChunks = (Row::kCodes + Row::kRope) / 64;  // of q
  static constexpr int kGroups = Row::kCodes / Row::kGroup;
  static constexpr int kTileBytes = kHeads * 128;  // [heads, 64] of two bytes, swizzled_tile
  // As many as fit, and no more than hide the latency of memory.
  static constexpr int kSlotBytes = kSlotRows * (Row::kRowBytes + 2 * kGroups + 1);
  static constexpr int kFree = kMaxShared - (kChunks + 2) * kTileBytes - 4 * 1024;
  static constexpr int kSlots = kFree / kSlotBytes < 10 ? kFree / kSlotBytes : 10;

  // q by 64 dims: f16 where keys are codes, in the order that KeyFragments wants; bf16 for RoPE.
  alignas(1024) uint8_t q[kChunks][kTileBytes];
  alignas(1024) uint8_t weights[2][kTileBytes];  // [heads, 64 keys] f16 of the two tiles
  alignas(128) uint8_t ring[kSlots][kSlotRows * Row::kRowBytes];
  // f16 scales of the rows of a slot; row r is at place 8 (r % 8 / 2) + 2 (r / 8) + r % 2, so that
  // a lane finds its four pairs together.
  alignas(16) __half scales[kSlots][kGroups][kSlotRows];
  uint8_t rows[kSlots][kSlotRows];  // RowState
  // Exponent that weights are relative to, log2; head 8 n + 2j + i is at (kHeads / 4) j + 2 n + i.
  alignas(16) float reference[kHeads];
  // How what came before tile 0 or 1 of the pair shrinks, if it moved the reference.
  alignas(16) float shrink[2][kHeads];
  int moved[2];
  int largest[kHeads];  // ordered_int of the largest logit seen, log2
  float sums[8][kHeads];
  float factor[kHeads];  // the sum of a head, then what its values are multiplied with
  ptx::Mbarrier full[kSlots], empty[kSlots], weights_full[2], weights_empty[2], parts;
  int item;
  int too_large;  // 1 + the last item that has something that does not fit f16
};

// Integers in the order of the floats.
__device__ inline int ordered_int(float x) {
  const int bits = __float_as_int(x);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ inline float from_ordered_int(int x) {
  return __int_as_float(x >= 0 ? x : x ^ 0x7fffffff);
}

// Place of a head in Shared::reference.
template <int kHeads>
__device__ int reference_place(int head) {
  return kHeads / 4 * (head % 8 / 2) + head / 8 * 2 + head % 2;
}
// Place of key k of 32 in Shared::scales.
__device__ inline int scale_place(int k) {
  return 8 * (k % 8 / 2) + 2 * (k / 8) + k % 2;
}

}  // namespace dsv4::sm90_fp8
