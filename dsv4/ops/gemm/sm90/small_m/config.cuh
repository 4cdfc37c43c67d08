// Products of few tokens on Hopper (small_m.h): formats, parameters, shared memory.
//
//   tile      64 rows of a weight matrix (M of wgmma) x kTokens tokens (N)
//   slab      64 rows x 128 bytes: 128 columns of an FP8 weight, 64 of a BF16 weight; one scale
//             per token and one of the weight. One tensor copy, one stage of the ring. Of bit
//             planes 64 rows x 256 columns, with two scales per token (kbit.cuh)
//   stage     of the ring: a slab; with more than 32 tokens also the activations of its columns,
//             which otherwise come with the first tile and stay in shared memory
//   cluster   `ranks` CTAs with the same tiles; rank r multiplies its share of the slabs

#pragma once

#include <cuda.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/ops/gemm/sm90/plan.h"

namespace dsv4::gemm {

inline constexpr int kConsumers = 128, kThreads = kConsumers + kWarp;  // one warpgroup, a producer
inline constexpr int kConsumerBarrier = 1;                             // named barrier

// kFormat: of weights and activations. kTokens: 8, 16, 32, 48 or 64; 2 or 8 of bit planes.
template <Format kFormat_, int kTokens_>
struct Config {
  static constexpr Format kFormat = kFormat_;
  static constexpr int kTokens = kTokens_;
  static constexpr int kBits = bits_of(kFormat);                   // K of bit planes, else 0
  static constexpr bool kScaledX = kFormat != Format::kBf16;       // activations have scales
  static constexpr int kXBoxes = x_boxes(kFormat);                 // 128-byte rows of x in a group
  static constexpr int kXBytes = x_group_bytes(kFormat, kTokens);  // of x for a group
  static constexpr bool kStreamsX = streams_x(kTokens);            // x is in the ring
  static constexpr int kGroups = slab_groups(kFormat);             // of x in a slab
  // Elements of the weight's tensor in a row of a slab: words of bit planes.
  static constexpr int kBoxColumns = kBits > 0 ? slab_columns(kFormat) / 32 * kBits
                                               : slab_columns(kFormat);
  // CTAs of an SM, at least; 0: as many as registers allow.
  static constexpr int kCtasOfSm = kBits > 0 && !converts_to_f16(kFormat) ? 3 : 0;
  // Sums of a thread: those of a product for all tokens, of which there are at least 8.
  static constexpr int kSums = (kTokens < 8 ? 8 : kTokens) / 2;
};

// One weight of a launch, [groups * n, k].
struct Matrix {
  CUtensorMap weight;           // boxes of a slab
  const void* scale = nullptr;  // [groups * n / 128, k / 128] E8M0|F32, of FP8;
                                // [groups * n, k / 32] E4M4, of bit planes
  void* out = nullptr;          // [t, groups * n] f32|bf16
  int64_t scale_stride = 0;     // blocks
  float factor = 1;             // of bit planes: of all sums
  int64_t out_stride = 0;       // elements
  bool scale_is_f32 = false, out_is_bf16 = false;
  int n = 0;                   // rows of one group
  int first_tile = INT32_MAX;  // among the tiles of the launch; INT32_MAX: no matrix
  int tiles = 0;               // of one group
};

template <int kMatrices_>
struct Params {
  static constexpr int kMatrices = kMatrices_;
  // Tile i is of matrix i % kMatrices; all matrices have the same rows. Else matrices follow each
  // other.
  static constexpr bool kInterleaved = false;

  CUtensorMap x;                     // boxes of kTokens tokens x 128 bytes
  const uint8_t* x_scale = nullptr;  // [t, groups * k / 128] E8M0, of FP8
  int64_t x_scale_stride = 0;
  // [t, k] bf16, to be quantized or converted by the kernel; for bit planes with x_scale E4M3,
  // since they take no tensor copy; null: x is used.
  const void* x_values = nullptr;
  int64_t x_stride = 0;
  int tokens = 0;
  int k = 0;  // columns of one group
  Split split;
  Matrix matrix[kMatrices];
};

// A tile as a CTA of any rank sees it.
struct Tile {
  int matrix;
  int row;    // of the weight, first
  int count;  // rows that exist
};

// The tiles of a cluster and the slabs of a rank.
struct Share {
  int first_tile, end_tile;
  int first_slab, slabs;
  int rank, group;  // group: of all tiles

  template <class P>
  __device__ Share(const P& params, int cluster, int rank_) : rank(rank_) {
    const Split& split = params.split;
    first_tile = cluster * split.tiles_per_cluster;
    end_tile = min(first_tile + split.tiles_per_cluster, split.tiles);
    first_slab = split.slabs * rank >> split.rank_bits;
    slabs = (split.slabs * (rank + 1) >> split.rank_bits) - first_slab;
    group = first_tile / split.tiles_per_group;
  }
};

template <class P>
__device__ inline Tile locate_tile(const P& params, const Share& share, int index) {
  int m = 0;
  if constexpr (P::kInterleaved) {
    m = index % P::kMatrices;
    const int row = index / P::kMatrices * kTileRows;
    return {.matrix = m, .row = row, .count = min(kTileRows, params.matrix[m].n - row)};
  } else if constexpr (P::kMatrices > 1) {
    while (m + 1 < P::kMatrices && index >= params.matrix[m + 1].first_tile) ++m;
  }
  const Matrix& matrix = params.matrix[m];
  const int first = (index - matrix.first_tile - share.group * matrix.tiles) * kTileRows;
  return {.matrix = m,
          .row = share.group * matrix.n + first,
          .count = min(kTileRows, matrix.n - first)};
}

// The dynamic shared memory of a CTA.
template <class C>
struct Memory {
  unsigned char* base;
  Layout at;

  __device__ explicit Memory(const Split& split)
      : base(ptx::dynamic_smem()), at(C::kFormat, C::kTokens, split) {}
  // Slab i of the ring.
  __device__ uint32_t slab(int i) const {
    return ptx::smem_address(base) + i * stage_bytes(C::kFormat, C::kTokens);
  }
  // Activations beside it, where they are streamed; as x().
  __device__ uint32_t x_of_slab(int i) const { return slab(i) + slab_bytes(C::kFormat); }
  __device__ unsigned char* planes(int i) const { return base + i * slab_bytes(C::kFormat); }
  // [kXBoxes][kTokens][128 bytes] of a group of columns, with the 128-byte swizzle
  __device__ unsigned char* x(int group) const { return base + at.x + group * C::kXBytes; }
  // [groups][kTokens]
  __device__ float* x_scale() const { return reinterpret_cast<float*>(base + at.x_scale); }
  // What the prologue keeps.
  __device__ float* prologue() const { return reinterpret_cast<float*>(base + at.prologue); }
  // Partial sums sent to this CTA: [ranks][token pairs of this rank][64 rows].
  __device__ float2* exchange(int buffer) const {
    return reinterpret_cast<float2*>(base + at.exchange + buffer * at.exchange_bytes);
  }
  __device__ ptx::Mbarrier* barriers() const {
    return reinterpret_cast<ptx::Mbarrier*>(base + at.barriers);
  }
  // Slabs have arrived, and activations that are copied with them: bytes -> consumers.
  __device__ ptx::Mbarrier& full(int stage) const { return barriers()[stage]; }
  // Slabs are read: all consumers -> producer.
  __device__ ptx::Mbarrier& empty(int stage) const { return barriers()[kMaxStages + stage]; }
  // What the prologue exchanges has arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& x_full() const { return barriers()[2 * kMaxStages]; }
  // Partial sums of all ranks have arrived: bytes -> consumers.
  __device__ ptx::Mbarrier& exchanged(int buffer) const {
    return barriers()[2 * kMaxStages + 1 + buffer];
  }

  // All ranks have read a buffer: a thread of each -> consumers.
  __device__ ptx::Mbarrier& freed(int buffer) const {
    return barriers()[2 * kMaxStages + 1 + kExchangeBuffers + buffer];
  }

  __device__ void init_barriers(const Split& split) const {
    for (int i = 0; i < split.stages; ++i) full(i).init(1), empty(i).init(kConsumers);
    x_full().init(1);
    for (int i = 0; i < kExchangeBuffers; ++i) exchanged(i).init(1), freed(i).init(split.ranks());
    ptx::fence_mbarrier_init();
  }
};

}  // namespace dsv4::gemm
