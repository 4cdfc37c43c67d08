// Sizes and row formats of sm90_fp8.cu.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/ops/sparse_mla/sm90_fp8_params.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_plan.h"

namespace dsv4::sm90_fp8 {

constexpr int kMaxShared = 227 << 10;  // bytes of a block
// Where a block's dynamic shared memory begins when it has no other: behind what the system keeps.
constexpr uint32_t kSharedBase = 1024;
constexpr int kWidthV = 512;                   // values of a row
constexpr int kOutTiles = kWidthV / 64 / 2;    // of 64 dims; a warpgroup has one half of them
constexpr int kTile = 64;                      // keys that a warpgroup multiplies with q at a time
constexpr int kSlotRows = 32;                  // a slot of the ring of raw rows
constexpr int kGroupThreads = 128;             // a warpgroup
constexpr int kConsumers = 2 * kGroupThreads;  // two of them compute,
constexpr int kThreads = kConsumers + kGroupThreads;  // the third gathers

// What a row is in memory, its layout says. Its first kRowBytes lie in shared memory as they do
// there, RoPE values from kRopeAt on, and the next row begins kStride bytes further: an odd number
// of 16-byte pieces, so that the same piece of eight rows is in different banks.
template <int kBytes>
inline constexpr int kOddPieces = kBytes + (kBytes / 16 % 2 == 0 ? 16 : 0);

// Codes and RoPE are key and value; scales lie at the end of the page.
struct RowV4 {
  static constexpr KvLayout kLayout{};
  static constexpr int kCodes = kLayout.nope, kRope = kLayout.rope, kGroup = kLayout.group();
  static constexpr bool kRopeIsValue = true, kFloatScales = false;
  static constexpr int kRopeAt = kLayout.rope_offset(0), kRowBytes = kLayout.entry_bytes();
  static constexpr int kStride = kOddPieces<kRowBytes>;
  // Of a row in the ring, for its keys: f16, where nothing is copied to.
  static constexpr int kScalesAt = kRowBytes;
  static_assert(kStride - kScalesAt >= 2 * (kCodes / kGroup + 1));
};

// RoPE is key only; the scales lie between the codes and it.
struct RowV32 {
  static constexpr KvLayout kLayout = kV32Layout;
  static constexpr int kCodes = kLayout.nope, kRope = kLayout.rope, kGroup = kLayout.group();
  static constexpr bool kRopeIsValue = false, kFloatScales = true;
  static constexpr int kRopeAt = kLayout.rope_offset(0), kRowBytes = kLayout.entry_bytes();
  static constexpr int kStride = kOddPieces<kRowBytes>;
  static constexpr int kScalesAt = kCodes;  // f32, as they came
};

// ldmatrix and bulk copies take 16 bytes, and a copy nothing behind a row.
template <class Row>
inline constexpr bool kOnPieces =
    Row::kRopeAt % 16 == 0 && Row::kRowBytes % 16 == 0 && Row::kScalesAt % 16 == 0 &&
    Row::kRopeAt + 2 * Row::kRope == Row::kRowBytes;
static_assert(kOnPieces<RowV4> && kOnPieces<RowV32>);

enum RowState : uint8_t { kNoKey = 0, kKey = 1, kKeyTooLarge = 2 };

}  // namespace dsv4::sm90_fp8
