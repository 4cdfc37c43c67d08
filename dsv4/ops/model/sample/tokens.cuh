// What the search of row.cuh counts and finds.

#pragma once

#include <vector_types.h>

#include "dsv4/device/select.cuh"
#include "dsv4/ops/model/sample/mass.h"
#include "dsv4/ops/model/sample/sample.h"
#include "dsv4/ops/model/sample/team.cuh"

namespace dsv4::sample_kernel {

inline constexpr int kThreads = 512, kWarps = kThreads / kWarp;
inline constexpr int kListed = 512;  // tokens that are compared all with all

// An order key and the complement of an id: the larger item comes first. 0: none.
using Item = uint64_t;
__device__ inline Item item_of(uint32_t key, int id) {
  return static_cast<Item>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline uint32_t key_of(Item item) {
  return static_cast<uint32_t>(item >> 32);
}
__device__ inline int id_of(Item item) {
  return static_cast<int>(~static_cast<uint32_t>(item));
}

// Tokens of a part of the row.
struct Bin {
  uint64_t mass;
  uint32_t count;

  __device__ void add(const Bin& more) { mass += more.mass, count += more.count; }
};

// In 12 bytes of shared memory: all lanes of a warp read theirs at once.
struct PackedBin {
  uint32_t low, high, count;

  __device__ PackedBin& operator=(const Bin& bin) {
    low = static_cast<uint32_t>(bin.mass), high = static_cast<uint32_t>(bin.mass >> 32);
    count = bin.count;
    return *this;
  }
  __device__ Bin unpacked() const { return {static_cast<uint64_t>(high) << 32 | low, count}; }
};

struct Found {
  Item item;
  uint64_t mass_through;  // of all tokens up to and including this one
};

// What a token counts: its mass, or 1.
struct Sizes {
  Weights weights;
  bool ones;

  __device__ uint64_t of(float logit, const double* exp2_table) const {
    if (ones) return logit > -INFINITY ? 1 : 0;
    return weights.of(logit, exp2_table);
  }
};

// Sums over a warp, in every lane.
__device__ inline uint64_t warp_sum(uint64_t x) {
  // Pieces of 26 bits, whose sums have 31.
  constexpr uint32_t kPiece = (1u << 26) - 1;
  const uint64_t low = __reduce_add_sync(~0u, static_cast<uint32_t>(x) & kPiece),
                 middle = __reduce_add_sync(~0u, static_cast<uint32_t>(x >> 26) & kPiece),
                 high = __reduce_add_sync(~0u, static_cast<uint32_t>(x >> 52));
  return low + (middle << 26) + (high << 52);
}
// Sum over the lanes up to this one.
__device__ inline Bin warp_sum_through(Bin x) {
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const uint64_t mass = __shfl_up_sync(~0u, x.mass, step);
    const uint32_t count = __shfl_up_sync(~0u, x.count, step);
    if (static_cast<int>(threadIdx.x % kWarp) >= step) x.add({mass, count});
  }
  return x;
}

// The bins of a row and their groups of 32. A bin has four columns, so that few lanes of a warp add
// to the same word, however few bins the logits fall in.
template <int kCtas>
struct Table {
  static constexpr int kBinBits = kCtas > 1 ? 11 : 9, kBins = 1 << kBinBits;
  static constexpr int kGroups = kBins / kWarp, kColumns = 4;
};

template <int kCtas>
struct Shared {
  using T = Table<kCtas>;
  struct WarpValue {
    uint64_t a, b;
  };
  struct Chosen {
    int bin;
    Bin before, inside;
    uint32_t offset;  // tokens of the bin that CTAs of lower rank have
  };

  // The columns of a bin in this CTA, in three words (histogram.cuh). Once they are added up,
  // `words[0]` holds the tokens of a bin that this CTA has, `words[1]` their sizes, and `words[2]`
  // the bins of a further division.
  uint4 words[3][T::kBins];
  PackedBin first_bins[T::kBins];  // of this CTA: of the first division
  // What CTAs send, by rank.
  WarpValue warp_values[2][kCtas * kWarps];
  uint64_t group_mass[kCtas][T::kGroups];
  uint32_t group_count[kCtas][T::kGroups];
  uint64_t bin_mass[2][kCtas][kWarp];
  uint32_t bin_count[2][kCtas][kWarp];
  Item listed[kListed];
  uint64_t sizes[kListed];
  Found found;
  Item top_sent[kCtas * kMaxTopLogprobs];
  // What follows is of this CTA, unless a comment says otherwise.
  Item top[kMaxTopLogprobs];
  Bin groups[2][T::kGroups], starts[2][T::kGroups];  // of the row: first division, further one
  Chosen chosen;
  uint32_t num_own, top_taken;
  double exp2_table[kExp2Steps];
  typename Team<kCtas>::Shared team;

  // Bins of this CTA. A bin of a further division overwrites its own columns.
  __device__ void set_bin(bool further, int i, const Bin& bin) {
    if (further) {
      words[2][i] = {static_cast<uint32_t>(bin.mass), static_cast<uint32_t>(bin.mass >> 32),
                     bin.count, 0};
    } else {
      first_bins[i] = bin;
    }
  }
  __device__ Bin bin(bool further, int i) const {
    if (!further) return first_bins[i].unpacked();
    const uint4 packed = words[2][i];
    return {static_cast<uint64_t>(packed.y) << 32 | packed.x, packed.z};
  }

  __device__ Item* own() { return reinterpret_cast<Item*>(words[0]); }
  __device__ uint64_t* own_sizes() { return reinterpret_cast<uint64_t*>(words[1]); }
  static_assert(sizeof(words[0]) >= kListed * sizeof(Item));
};

}  // namespace dsv4::sample_kernel
