// Products of lists of token-expert pairs with kernel images of k-bit or FP4 weights: sizes and
// parameters.

#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/ops/gemm/sm90/experts/entries.h"
#include "dsv4/ops/gemm/weights/kbit_image_table.h"

namespace dsv4::gemm::experts {

inline constexpr int kMathWarps = 16;  // of a CTA
// Registers of a thread: 96 at launch, moved from the last warpgroup to the four before it.
inline constexpr int kMathRegisters = 104, kOtherRegisters = 64;

// One of the two products. A stage is the work of all math warps at a time: `stage_strips` strips
// of 16 rows of an image, one unit for each warp.
struct Params {
  ImagePlaces images;
  int strips, chunks;  // of an image: rows / 16, columns / 256
  int stage_strips;    // kMathWarps / chunks
  int stages;          // ceil(strips / stage_strips)
  KbitTable table;     // the codebook

  const bf16* x;  // gate and up: rows are tokens; down: rows are pairs
  int64_t x_stride;
  int columns;  // of x; the image has zero scales past them

  const Entry* entries;  // at most kPairs pairs of one expert each
  const Start* starts;   // [gridDim.x]
  Choices choices;       // sm90_few_e4m3, of at most kOwnPairs pairs: kernels list them themselves
  int32_t* pair_of;      // of calls with choices, see PairLists, or null: the kernel stores it
  bool waits_first;      // down: waits for the kernels before it before it reads lists or choices

  const float* scale2;       // [e, 3]: of w1, w3, w2
  float factor;              // what all sums lack: the table's unit, and that of scales
  const float* pair_weight;  // [pairs], gate and up
  float limit;               // of SwiGLU
  bf16* out;                 // gate and up: h [pairs, i]; down: y [pairs, d]
  bool out_by_pair;          // down: rows of y are Entry::token
  int64_t out_stride;
  int rows;  // of out

  int ctas;           // the grid
  bool starts_early;  // LaunchShape::pdl
};

// Partial sums of one stage: 16 rows x 8 pairs for each math warp, as accumulators of 32 lanes.
struct Partials {
  float4 sums[kMathWarps][kWarp];
};

// How the kernels of a folder take an image.
struct Reader {
  KbitTable (*table)(const Codebook& codebook);
  int (*stage_strips)(int chunks);  // strips of 16 rows of a stage
  int own_pairs = 0;                // they list the pairs of calls of at most so many themselves
};

}  // namespace dsv4::gemm::experts
