// Sizes and shared memory of the kernels in this folder. Parameters are those of sm90/experts.

#pragma once

#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/formats/kbit_image.h"
#include "dsv4/ops/gemm/sm90/experts/work.cuh"

namespace dsv4::gemm::experts_e4m3 {

using gemm::experts::Entry;
using gemm::experts::kPairs;
using gemm::experts::Params;
using gemm::experts::Partials;
using gemm::experts::Range;
using gemm::experts::Start;
using gemm::experts::strips_of;
using gemm::experts::Work;

inline constexpr int kGroups = 4, kGroupWarps = 4;  // math warpgroups and their warps
inline constexpr int kMathWarps = kGroups * kGroupWarps, kEpilogueWarps = 2;
inline constexpr int kProducerWarp = kMathWarps + kEpilogueWarps;
inline constexpr int kThreads = (kMathWarps + 4) * kWarp;
inline constexpr int kBuffers = 2;  // of partial sums
using gemm::experts::kMathRegisters;
using gemm::experts::kOtherRegisters;

// An item is kStrips strips of 16 rows of one entry, in steps of kGroups chunks of 256 columns:
// warpgroup j multiplies the chunks j, j + kGroups, ...
inline constexpr int kStrips = kGroupWarps;

// Columns of x, at most: in both products, and in gate and up of wide experts.
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

// What these kernels take.
inline constexpr gemm::experts::Reader kReader{make_e4m3_table, [](int) { return kStrips; },
                                               kOwnPairs};

// Own: what a kernel keeps beside the buffers, at most kOwnBytes with barriers and scales of x.
// kTerms: columns of the products that a pair takes (x/rows_of_experts.cuh)
template <int K_, ImageScale kScale_, int kTiles_, class Own = OwnList, int kOwnBytes = 4096,
          int kTerms_ = 1>
struct Shared {
  static constexpr int K = K_, kTiles = kTiles_, kTerms = kTerms_, kUnit = kUnitBytes<K_, kScale_>;
  static constexpr ImageScale kScale = kScale_;
  static constexpr int kStageBytes = kStrips * kGroups * kUnit;
  static constexpr int kStages =
      (sm90::kMaxSmem - kTiles * static_cast<int>(sizeof(ActivationTile)) -
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

// The shared memory of the kernels for rows of at most kColumns.
template <int K, ImageScale kScale, int kColumns>
using SharedOf = Shared<K, kScale, kColumns / kQ8Group>;

// The place of an item's step in the ring. S: a Shared, here and below.
template <class S>
struct RingPlace : sm90::RingCursor {
  __device__ void next() { sm90::RingCursor::next(S::kStages); }
};

template <class S>
__device__ void init_barriers(S& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) shared.full[i].init(1), shared.empty[i].init(kMathWarps);
    for (int i = 0; i < kBuffers; ++i) shared.drained[i].init(kEpilogueWarps * kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
}

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

}  // namespace dsv4::gemm::experts_e4m3
