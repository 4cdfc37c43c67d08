// Products of many tokens on Hopper with the bits of small_m (kernel.cuh): tiles, parameters,
// shared memory.
//
//   tile      of a CTA: 128 rows of a weight (M of wgmma) x 128 tokens (N)
//   slab      128 rows x 128 bytes of weights and the activations of its columns, a stage of the
//             ring: the columns of a slab of small_m, after which sums go to f32
//   cluster   two CTAs with neighboring rows and the same tokens: each copies the activations of
//             half of the tokens to both

#pragma once

#include <cuda.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/device/sm90/warpgroup.cuh"
#include "dsv4/ops/gemm/sm90/plan.h"
#include "dsv4/ops/gemm/sm90/small_m.h"

namespace dsv4::gemm::large_m {

inline constexpr int kRows = 128, kTokens = 128;  // of a tile
inline constexpr int kCtas = 2;                   // of a cluster
inline constexpr int kGroups = 2;                 // consumer warpgroups, 64 rows each
inline constexpr int kConsumers = kGroups * sm90::kWarpgroup, kConsumerWarps = kConsumers / kWarp;
inline constexpr int kThreads = kConsumers + sm90::kWarpgroup;  // and a warpgroup of producers
inline constexpr int kProducerRegisters = 24;
inline constexpr int kMatrices = kQ8Targets > kBf16Targets ? kQ8Targets : kBf16Targets;
inline constexpr int kSums = kTokens / 2;  // of a thread
// Named barriers: of a consumer warpgroup (two), and of all consumers.
inline constexpr int kGroupBarrier = 1, kConsumerBarrier = kGroupBarrier + kGroups;
static_assert(kRows == kGroups * kTileRows);
static_assert(kRows == kScaleColumns && kTokens == sm90::kWarpgroup, "a producer has a token");

// kFormat: kFp8, kBf16, or kFp8Bf16 with activations in f16 (x/stored_f16.cuh).
template <Format kFormat_>
struct Config {
  static constexpr Format kFormat = kFormat_;
  static constexpr bool kScaled = kFormat != Format::kBf16;
  static constexpr int kWeightBytes = kRows * kSlabBytes;  // of a stage
  static constexpr int kXBoxes = x_boxes(kFormat);         // rows of 128 bytes of a token
  static constexpr int kXBoxBytes = kTokens * kSlabBytes;
  static constexpr int kStageBytes = kWeightBytes + kXBoxes * kXBoxBytes;
  static constexpr int kColumns = slab_columns(kFormat);
  static constexpr int kStages = converts_to_f16(kFormat) ? 4 : 5;
};

// One weight of a launch, [groups * rows, k].
struct Matrix {
  CUtensorMap weight;           // boxes of kRows rows x 128 bytes
  const void* scale = nullptr;  // [groups * rows / 128, k / 128] E8M0|F32
  int64_t scale_stride = 0;
  bool scale_is_f32 = false;

  void* out = nullptr;     // [t, groups * rows] f32|bf16; null: sums go to Params::codes
  int64_t out_stride = 0;  // elements
  bool out_is_bf16 = false;
  bool out_in_vectors = false;  // eight rows of a token from a multiple of 8 on are on 16 bytes

  int rows = 0;                // of one group
  int row_pairs = 0;           // tiles of a cluster along them
  int first_tile = INT32_MAX;  // among the clusters' tiles of the launch; INT32_MAX: no matrix
  bool tokens_first = false;   // neighboring clusters have other tokens, not other rows
};

struct Params {
  Matrix matrix[kMatrices];
  CUtensorMap x;                     // boxes of kTokens / kCtas tokens x 128 bytes
  const uint8_t* x_scale = nullptr;  // [t, groups * k / 128] E8M0
  int64_t x_scale_stride = 0;
  // Q8 of the sums in bf16, of one matrix: [t, groups * rows], contiguous, with E8M0 scales
  uint8_t *codes = nullptr, *code_scales = nullptr;

  int tokens = 0, k = 0;         // k: of one group
  int slabs = 0, rank_bits = 0;  // of a row; of Split
  int groups = 1;
  int token_tiles = 0, tiles = 0;  // tiles: of a cluster
};

// A tile of a CTA.
struct Tile {
  int matrix, group, row, token;  // the first ones; row: of the group
  int rows;                       // that exist

  // index: of the cluster's tile
  __device__ Tile(const Params& p, int index, int rank) : matrix(0) {
    while (matrix + 1 < kMatrices && index >= p.matrix[matrix + 1].first_tile) ++matrix;
    const Matrix& m = p.matrix[matrix];
    const int of_group = m.row_pairs * p.token_tiles;
    int at = index - m.first_tile;
    group = at / of_group;
    at -= group * of_group;
    const int pair = m.tokens_first ? at / p.token_tiles : at % m.row_pairs;
    token = (m.tokens_first ? at % p.token_tiles : at / m.row_pairs) * kTokens;
    row = (pair * kCtas + rank) * kRows;
    rows = max(0, min(kRows, m.rows - row));
  }
};

// Calls body(tile) for those of a CTA: clusters take turns.
template <class Body>
__device__ void visit_tiles(const Params& p, const Body& body) {
  const int cluster = static_cast<int>(blockIdx.x) / kCtas,
            clusters = static_cast<int>(gridDim.x) / kCtas;
#pragma unroll 1
  for (int i = cluster; i < p.tiles; i += clusters)
    body(Tile(p, i, static_cast<int>(blockIdx.x) % kCtas));
}

template <class C>
struct Shared {
  // Weights [kRows][128 bytes], then kXBoxes of activations [kTokens][128 bytes], with the swizzle.
  alignas(1024) unsigned char stage[C::kStages][C::kStageBytes];
  // Sums on their way out, [kTokens][64 rows] of a consumer warpgroup in bf16: see staged_at().
  alignas(16) unsigned char staging[kGroups][kTokens * kTileRows * 2];
  float factor[C::kStages][kTokens];  // scale of the weights times that of a token
  // Bytes of a stage, and factors -> consumers.
  ptx::Mbarrier full[C::kStages];
  // A stage is read: consumer warps of both CTAs -> producers.
  ptx::Mbarrier empty[C::kStages];
};

// Vector `v` of eight rows of a token in the staging of a warpgroup.
DSV4_HD constexpr int staged_at(int token, int v) {
  return token * kTileRows * 2 + (v ^ token % 8) * 16;
}

}  // namespace dsv4::gemm::large_m
