// Sizes and row formats of sm90_fp8.cu.

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

}  // namespace dsv4::sm90_fp8
