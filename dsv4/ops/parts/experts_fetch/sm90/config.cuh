// Sizes, parameters and shared memory of the two kernels in this folder.

#pragma once

#include <cstddef>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/ops/parts/experts_fetch/decide.h"

namespace dsv4::experts_fetch_kernel::sm90 {

// Measured without experts beside it (docs/experts-in-host-memory.md): two CTAs with strips of
// 26,624 bytes and four stages read host memory as fast as the link allows. There are four here,
// because they also store what they read with ordinary instructions, which was not measured.
inline constexpr int kStripBytes = 26624, kStages = 4;
inline constexpr int kCtas = 4;
inline constexpr int kStoreWarps = 8;
inline constexpr int kStoreThreads = kStoreWarps * kWarp, kThreads = kStoreThreads + kWarp;

// The bytes of places: `kept` in one block, transient ones in another.
struct PlaceMemory {
  std::byte *memory, *transient;
  int64_t distance, transient_distance;  // from one place to the next; multiples of 16
  int kept;

  __device__ std::byte* of(int place) const {
    return place < kept ? memory + place * distance
                        : transient + (place - kept) * transient_distance;
  }
};

struct DecideParams {
  LayerPlaces layer;
  const int32_t* ids;
  int choices;
  const int64_t* homes;
  int64_t* places;
  PlaceMemory memory;
  int64_t* counters;
  Move* moves;       // [experts]
  int* count;        // of moves
  int32_t* turn_of;  // [experts], or null
};

struct CopyParams {
  const int64_t* homes;
  PlaceMemory memory;
  int64_t bytes;  // of an expert, a multiple of 16
  const Move* moves;
  const int* count;
};

struct Shared {
  alignas(128) unsigned char stages[kStages][kStripBytes];
  ptx::Mbarrier full[kStages], empty[kStages];
};
static_assert(sizeof(Shared) <= dsv4::sm90::kMaxSmem);

}  // namespace dsv4::experts_fetch_kernel::sm90
