// Sizes, parameters and shared memory of the kernels in this folder.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/parts/experts/sm90_few/decode.cuh"
#include "dsv4/ops/parts/experts/sm90_few/entries.h"
#include "dsv4/ops/parts/experts/sm90_few/table.h"

namespace dsv4::experts_few {

inline constexpr int kMathWarps = 16, kEpilogueWarps = 3;
inline constexpr int kProducerWarp = kMathWarps + kEpilogueWarps;
inline constexpr int kThreads = (kProducerWarp + 1) * kWarp;
inline constexpr int kBuffers = kEpilogueWarps;  // of partial sums, one for each epilogue warp
// Registers of a thread: 96 at launch, moved from the last warpgroup to the four before it.
inline constexpr int kMathRegisters = 104, kOtherRegisters = 64;
static_assert(16 * kMathRegisters + 4 * kOtherRegisters == 20 * 96);

// Of a k-bit image: formats/kbit_image.h.
inline constexpr int kUnitColumns = 256, kUnitRows = 16;
template <int K>
inline constexpr int kUnitBytes = 512 * K + 128;

// One of the two products. A stage is the work of all math warps at a time: `stage_strips` strips
// of 16 rows of an image, one unit for each warp.
struct Params {
  const std::byte* images;  // [e] kernel images
  int64_t image_bytes;      // from one expert to the next
  int strips, chunks;       // of an image: rows / 16, columns / 256
  int stage_strips;         // kMathWarps / chunks
  int stages;               // ceil(strips / stage_strips)
  Table table;              // the codebook

  const bf16* x;  // gate and up: rows are tokens; down: rows are pairs
  int64_t x_stride;
  int columns;  // of x; the image has zero scales past them

  const Entry* entries;  // at most kPairs pairs of one expert each
  const Start* starts;   // [gridDim.x]
  Choices choices;       // sm90_few_e4m3, of at most kOwnPairs pairs: kernels list them themselves
  int32_t* pair_of;      // of calls with choices, see PairLists: gate and up store it

  const float* scale2;       // [e, 3]: of w1, w3, w2
  float factor;              // what all sums lack: the table's unit, and 16 (block_scales())
  const float* pair_weight;  // [pairs], gate and up
  float limit;               // of SwiGLU
  bf16* out;                 // gate and up: h [pairs, i]; down: y [pairs, d]
  int64_t out_stride;
  int rows;  // of out
};

inline constexpr int kMaxShared = 227 << 10;
// Partial sums of one stage: 16 rows x 8 pairs for each math warp, as accumulators of 32 lanes.
struct Partials {
  float4 sums[kMathWarps][kWarp];
};

template <int K>
struct Shared {
  static constexpr int kStageBytes = kMathWarps * kUnitBytes<K>;
  static constexpr int kStages = (kMaxShared - kBuffers * static_cast<int>(sizeof(Partials)) -
                                  static_cast<int>(sizeof(PairTable<K>)) - 1024) /
                                 kStageBytes;

  unsigned char stages[kStages][kStageBytes];
  PairTable<K> pairs;
  Partials partials[kBuffers];
  // full: the bytes of a stage have landed; empty: all math warps have read it
  ptx::Mbarrier full[kStages], empty[kStages];
  // The epilogue warp has read the partial sums. (That all math warps have stored them is a named
  // barrier, filled_barrier().)
  ptx::Mbarrier drained[kBuffers];
};

// The named barrier of a buffer: math warps arrive, its epilogue warp waits.
__device__ inline int filled_barrier(int buffer) {
  return 1 + buffer;
}
inline constexpr int kFilledThreads = (kMathWarps + 1) * kWarp;

}  // namespace dsv4::experts_few
