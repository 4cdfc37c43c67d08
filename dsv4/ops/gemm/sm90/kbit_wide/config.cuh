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

inline constexpr int kConsumerRegisters = 112, kProducerRegisters = 32;
static_assert(4 * kConsumerRegisters + kProducerRegisters == 5 * 96);

struct Params {
  CUtensorMap codes;   // [n, k / 32 K] words: boxes of a tile's rows x a unit
  CUtensorMap scales;  // [n, k / 32] bytes, E4M4: boxes of a tile's rows x kScaleUnits units
  const float* codebook = nullptr;  // [2^K]
  const uint16_t* x = nullptr;      // as order_x.cuh has written it
  void* out = nullptr;              // [tokens, n]
  int64_t out_stride = 0;           // elements
  DType out_dtype = DType::kBF16;
  int n = 0, tokens = 0;
  int units = 0, rank_bits = 0;  // kbit_wide_plan.h
  float scale2 = 1;
};

// The template arguments of everything that follows.
template <int kBits, class T, int kTileGroups, int kTileColumns>
struct Config {
  using X = T;  // bf16 or f16
  using Lookup = KbitLookup<kBits, T>;
  static constexpr int K = kBits, kGroups = kTileGroups, kColumns = kTileColumns;
  static constexpr int kRows = kGroups * kGroupRows;
  // Registers are moved between warpgroups, so four of consumers need a whole one of producers.
  static constexpr bool kMovesRegisters = kGroups == 4;
  static constexpr int kConsumers = kGroups * sm90::kWarpgroup,
                       kThreads = kConsumers + (kMovesRegisters ? sm90::kWarpgroup : kWarp);
  // Steps of A in registers. With one, only other warpgroups multiply while a warpgroup decodes.
  static constexpr int kBuffers = kMovesRegisters && kColumns > 64 ? 1 : 2;
};

// The dynamic shared memory of a CTA.
template <class C>
struct Shared {
  static constexpr int kHalfBytes = C::kColumns * kHalfRow * 2;
  static constexpr int kXBytes = 2 * kHalfBytes, kCodeBytes = C::kRows * kUnit / 8 * C::K,
                       kScaleBytes = C::kRows * kScaleUnits * kUnitBlocks;
  // As many units as there is room for are in flight, 96 to 154 KB.
  static constexpr int kMostStages = 8, kMostScaleStages = 3, kOtherBytes = 2048;
  static constexpr int kRoom =
      sm90::kMaxSmem - C::Lookup::kTableBytes - kMostScaleStages * kScaleBytes - kOtherBytes;
  static constexpr int kStages = std::min(kMostStages, kRoom / (kXBytes + kCodeBytes));
  static_assert(kStages >= 2);
  // The scales of a group of units are overwritten when the last unit of the group is used up.
  static constexpr int kScaleStages = ceil_div(kStages + kScaleUnits - 1, kScaleUnits);
  static_assert(kScaleStages <= kMostScaleStages);

  alignas(1024) unsigned char table[C::Lookup::kTableBytes];
  alignas(1024) unsigned char x[kStages][2][kHalfBytes];         // order_x.cuh
  alignas(128) unsigned char codes[kStages][kCodeBytes];         // [rows][4 blocks][K words]
  alignas(128) unsigned char scales[kScaleStages][kScaleBytes];  // [rows][16 blocks]
  ptx::Mbarrier full[kStages], empty[kStages], exchanged;
  uint16_t book[kWarp];
  float factor;  // of the sums
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
