// Parameters, tiles and shared memory of both kernels of sm90_many, and their launch shape.

#pragma once

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/ops/model/hc_boundary/sm90_few/params.cuh"

namespace dsv4::hc_boundary_kernel::sm90_many {

using namespace gemm::boundary;
using gemm::CodesOfRun, gemm::group_square, gemm::kRun, gemm::kRuns, gemm::Run;

inline constexpr int kColumns = 128;  // of each stream, of a tile of post_mix
inline constexpr int kBlock = 64;     // tokens whose X' is in shared memory: rows of a wgmma
inline constexpr int kStep = 32;      // tokens that are mixed at a time
inline constexpr int kTerms = 3;      // bf16 numbers whose sum is a value of fn
inline constexpr int kProducts = kTerms * kMixes;  // columns of a wgmma
inline constexpr int kStages = 2;                  // steps whose X is under way
inline constexpr int kMixThreads = kStep * kColumns / kRun, kMixWarps = kMixThreads / kWarp;
inline constexpr int kDotThreads = 128;  // a warpgroup
inline constexpr int kPostMixThreads = kMixThreads + kDotThreads;

// Operands of wgmma: 64 columns are a row of 128 bytes, with the 128-byte swizzle (smem_desc.cuh).
inline constexpr int kSlices = kStreams * kColumns / 64, kSliceRow = 128, kChunk = 16;
inline constexpr int kFactors = kStreams + 1;  // rows of comb, then post

struct PostMixShared {
  alignas(1024) unsigned char fn[kSlices][kProducts * kSliceRow];  // rows: term 0 of all mixes, ..
  alignas(1024) unsigned char tile[kSlices][kBlock * kSliceRow];   // X'
  uint4 x[kStages][kStreams][kMixThreads];                         // each thread's own
  float4 factors[kStages][kStep][kFactors];
  ptx::Mbarrier loaded[kStages][kMixWarps], tile_full, tile_empty;
};
static_assert(sizeof(PostMixShared) <= sm90::kMaxSmem);

// Bytes from the start of a slice to chunk `chunk` (8 values) of row `row`.
__device__ inline int swizzled(int row, int chunk) {
  return row * kSliceRow + (chunk ^ row % 8) * kChunk;
}

inline constexpr int kFinishTokens = 4;     // of a CTA of finish
inline constexpr int kMaxColumns = 7168;    // d
inline constexpr int kUsualColumns = 4096;  // up to here two CTAs of finish fit on an SM

// What the kernels of both implementations take, and the partial sums of this one.
struct ManyParams {
  Params call;          // without `partial` and `slices`
  float* dots;          // [tiles, t, kMixes]
  float* squares;       // [tiles, t]
  ColumnHomes y_homes;  // a tile has one
  int tiles;            // d / kColumns
  int blocks;           // blocks of tokens that a CTA of post_mix processes, one after the other
};

// Blocks of tokens of a CTA: as many CTAs as there are SMs, each of which keeps its columns of fn.
inline int blocks_of_cta(int64_t t, int64_t tiles, int sms) {
  const int64_t blocks = ceil_div(t, kBlock), groups = std::max<int64_t>(1, sms / tiles);
  return static_cast<int>(ceil_div(blocks, std::min(groups, blocks)));
}

}  // namespace dsv4::hc_boundary_kernel::sm90_many
