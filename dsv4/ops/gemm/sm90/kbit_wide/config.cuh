// Parameters and shared memory of the kernel of kbit_wide.h, and what of the product a CTA has.

#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/device/sm90/warpgroup.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide_plan.h"
#include "dsv4/ops/gemm/weights/kbit_lookup.cuh"
#include "dsv4/tensor/dtype.h"

namespace dsv4::gemm::kbit_wide {

inline constexpr int kConsumers = kGroups * sm90::kWarpgroup, kProducers = sm90::kWarpgroup;
inline constexpr int kThreads = kConsumers + kProducers;
inline constexpr int kConsumerWarps = kConsumers / kWarp;
// Where two blocks and their products in flight need more than a third of the registers.
inline constexpr int kConsumerRegisters = 200, kProducerRegisters = 104;
static_assert(2 * kConsumerRegisters + kProducerRegisters == 3 * 168);

struct Params {
  CUtensorMap codes;   // [n, k / 32 K] words: boxes of a tile's rows x a unit
  CUtensorMap scales;  // [n, k / 32] bytes, E4M4: boxes of a tile's rows x kScaleUnits units
  const float* codebook = nullptr;       // [2^K]
  const uint16_t* x = nullptr;           // [tokens, k] bf16 or f16, rows 16-byte aligned
  void* out = nullptr;                   // [tokens, n]
  int64_t x_stride = 0, out_stride = 0;  // elements
  DType out_dtype = DType::kBF16;
  int n = 0, tokens = 0;
  int units = 0, rank_bits = 0;  // kbit_wide_plan.h
  float scale2 = 1;
};

// The template arguments of everything that follows.
template <int kBits, class T, int kTileBlocks, int kTileColumns>
struct Config {
  using X = T;  // bf16 or f16
  using Lookup = KbitLookup<kBits, T>;
  static constexpr int K = kBits, kBlocks = kTileBlocks, kColumns = kTileColumns;
  static constexpr int kRows = kGroups * kBlockRows * kBlocks;
  static constexpr bool kMovesRegisters = kBlocks == 2 && kColumns > 96;
};

// The dynamic shared memory of a CTA.
template <class C>
struct Shared {
  static constexpr int kHalfBytes = C::kColumns * 128;  // a row of 64 values for every column
  static constexpr int kXBytes = 2 * kHalfBytes, kCodeBytes = C::kRows * kUnit / 8 * C::K,
                       kScaleBytes = C::kRows * kScaleUnits * kUnitBlocks;
  // One block is bound by L2: more of x is in flight.
  static constexpr int kXStages = std::clamp((C::kBlocks == 1 ? 96 : 72) * 1024 / kXBytes, 2, 4);
  static constexpr int kMostScaleStages = 3, kOtherBytes = 2048;
  static constexpr int kLeft = sm90::kMaxSmem - C::Lookup::kTableBytes - kXStages * kXBytes -
                               kMostScaleStages * kScaleBytes - kOtherBytes;
  static constexpr int kCodeStages = std::min(8, kLeft / kCodeBytes);
  static_assert(kCodeStages >= 3);
  // The scales of a group of units are overwritten when those of the last one of the group are free
  // (producer.cuh).
  static constexpr int kScaleStages = (kCodeStages + 3 + kScaleUnits - 1) / kScaleUnits;
  static_assert(kScaleStages <= kMostScaleStages);

  alignas(1024) unsigned char table[C::Lookup::kTableBytes];
  // Columns 64 j .. of a unit's two halves, in the order of a product (producer.cuh), swizzled.
  alignas(1024) unsigned char x[kXStages][2][kHalfBytes];
  alignas(128) unsigned char codes[kCodeStages][kCodeBytes];     // [rows][4 blocks][K words]
  alignas(128) unsigned char scales[kScaleStages][kScaleBytes];  // [rows][16 blocks]
  ptx::Mbarrier x_full[kXStages], x_empty[kXStages], codes_full[kCodeStages], exchanged;
  uint16_t book[kWarp];
};

// What a CTA has.
struct Share {
  int rank, ranks, rank_bits;
  int first_unit, units;
  int first_row, first_token;

  template <class C>
  static __device__ Share of(const Params& p) {
    Share s;
    s.rank_bits = p.rank_bits;
    s.ranks = 1 << p.rank_bits;
    s.rank = static_cast<int>(blockIdx.x) & (s.ranks - 1);
    s.first_unit = kbit_wide::first_unit(p.units, p.rank_bits, s.rank);
    s.units = kbit_wide::first_unit(p.units, p.rank_bits, s.rank + 1) - s.first_unit;
    s.first_row = (static_cast<int>(blockIdx.x) >> p.rank_bits) * C::kRows;
    s.first_token = static_cast<int>(blockIdx.y) * C::kColumns;
    return s;
  }
  // The stage of the scales of a unit of this CTA.
  template <class C>
  __device__ int scale_stage(int unit) const {
    return ((first_unit + unit) / kScaleUnits - first_unit / kScaleUnits) % Shared<C>::kScaleStages;
  }
};

}  // namespace dsv4::gemm::kbit_wide
