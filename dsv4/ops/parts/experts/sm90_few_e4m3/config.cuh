// Sizes and shared memory of the kernels in this folder. Parameters are those of sm90_few.

#pragma once

#include "dsv4/ops/parts/experts/sm90_few/work.cuh"

namespace dsv4::experts_few_e4m3 {

using experts_few::Entry;
using experts_few::kPairs;
using experts_few::kUnitBytes;
using experts_few::kUnitColumns;
using experts_few::Params;
using experts_few::Partials;
using experts_few::Range;
using experts_few::Start;
using experts_few::strips_of;
using experts_few::Table;
using experts_few::Work;

inline constexpr int kGroups = 4, kGroupWarps = 4;  // math warpgroups and their warps
inline constexpr int kMathWarps = kGroups * kGroupWarps, kEpilogueWarps = 2;
inline constexpr int kProducerWarp = kMathWarps + kEpilogueWarps;
inline constexpr int kThreads = (kMathWarps + 4) * kWarp;
inline constexpr int kBuffers = 2;  // of partial sums
using experts_few::kMathRegisters;
using experts_few::kOtherRegisters;

// An item is kStrips strips of 16 rows of one entry, in steps of kGroups chunks of 256 columns:
// warpgroup j multiplies the chunks j, j + kGroups, ...
inline constexpr int kStrips = kGroupWarps;

// Of x, at most: of both products, and of gate and up of wide experts.
inline constexpr int kMaxColumns = 4096, kWideColumns = 7168;
inline constexpr int kQ8Group = 128;

// 8 pairs x 128 columns of e4m3 codes as wgmma reads them: rows of 128 bytes, swizzled, with the
// columns of each 16 in the order of the codes of a lane (formats/kbit_image.h).
struct alignas(1024) ActivationTile {
  unsigned char codes[kPairs][kQ8Group];
};

// Calls of at most so many pairs are listed by each CTA for itself: a launch less.
inline constexpr int kOwnPairs = kWarp;
struct OwnList {
  Entry entries[kOwnPairs];
  float weight[kOwnPairs];  // of pairs
  int count;                // entries
};

// Own: what a kernel keeps beside the buffers, at most kOwnBytes with barriers and scales of x.
template <int K_, int kTiles_, class Own = OwnList, int kOwnBytes = 4096>
struct Shared {
  static constexpr int K = K_, kTiles = kTiles_;
  static constexpr int kStageBytes = kStrips * kGroups * kUnitBytes<K>;
  static constexpr int kStages =
      (experts_few::kMaxShared - kTiles * static_cast<int>(sizeof(ActivationTile)) -
       kBuffers * static_cast<int>(sizeof(Partials)) - kOwnBytes) /
      kStageBytes;

  ActivationTile x[kTiles];
  unsigned char stages[kStages][kStageBytes];  // [strips][chunks] units
  Partials partials[kBuffers];                 // of warp kGroupWarps * group + strip
  float x_scale[kTiles][kPairs];
  Own own;
  ptx::Mbarrier full[kStages], empty[kStages];
  ptx::Mbarrier drained[kBuffers];
};

// Of the kernels for rows of at most kColumns.
template <int K, int kColumns>
using SharedOf = Shared<K, kColumns / kQ8Group>;

// A stage of the ring and the parity of its use. S: a Shared, here and below.
template <class S>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ void next() {
    if (++stage == S::kStages) stage = 0, parity ^= 1;
  }
};

// Named barriers: math warps have stored the partial sums of a buffer; the warps of a warpgroup
// about their activations.
__device__ inline int filled_barrier(int buffer) {
  return 1 + buffer;
}
inline constexpr int kFilledThreads = (kMathWarps + kEpilogueWarps) * kWarp;
__device__ inline int group_barrier(int group) {
  return 1 + kBuffers + group;
}

// Steps of an item.
__device__ inline int steps_of(const Params& p) {
  return (p.chunks + kGroups - 1) / kGroups;
}

}  // namespace dsv4::experts_few_e4m3
