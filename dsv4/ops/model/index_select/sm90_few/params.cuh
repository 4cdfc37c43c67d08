// Shapes, arguments and shared memory of the kernel of sm90_few.

#pragma once

#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/model/index_select/index_select.h"
#include "dsv4/ops/parts/indexer/mma_scores.cuh"

namespace dsv4::index_select_kernel::sm90_few {

inline constexpr int kDigitBits = 8, kBins = 1 << kDigitBits;  // keys of 16 bits: two digits
inline constexpr int64_t kMaxVisible = 65536;
inline constexpr int kThreadKeys = 8;  // order keys that a thread of a gathering CTA has

// A cluster has one query. kTogether: groups of 8 heads whose products are in flight at a time.
template <int kCtas_, int kWarps_, int kTogether_>
struct Config {
  static constexpr int kCtas = kCtas_, kWarps = kWarps_, kTogether = kTogether_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kPassKeys = kWarps * indexer_kernel::kTileKeys;  // of a CTA at a time
  static_assert(kBins <= kThreads, "a thread for each bin");

  // Entries of a CTA when `visible` are: whole warp votes.
  __host__ __device__ static int slice_of(int visible) {
    return static_cast<int>(align_up(ceil_div(visible, kCtas), kWarp));
  }
};
using Many = Config<8, 16, 2>;
using ManyWide = Config<16, 16, 2>;  // few queries

// A cluster of few entries: a warp has kTiles tiles of keys, once, and the first CTA selects.
// kCtasOfSm: CTAs of an SM, at least.
template <int kCtas_, int kWarps_, int kTiles_, int kTogether_, int kCtasOfSm_ = 1>
struct GatherConfig {
  static constexpr int kCtas = kCtas_, kWarps = kWarps_, kTiles = kTiles_, kTogether = kTogether_;
  static constexpr int kCtasOfSm = kCtasOfSm_;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kWarpKeys = kTiles * indexer_kernel::kTileKeys;
  static constexpr int kMost = kCtas * kWarps * kWarpKeys;  // entries of a query
  static_assert(kBins <= kThreads, "a thread for each bin");
  static_assert(kMost <= kThreads * kThreadKeys, "a CTA has all keys");

  // Entries of a CTA when `visible` are: whole tiles.
  __host__ __device__ static int slice_of(int visible) {
    return static_cast<int>(align_up(ceil_div(visible, kCtas), indexer_kernel::kTileKeys));
  }
};
using Few = GatherConfig<8, 8, 2, 2>;       // up to 2,048 entries
using FewWide = GatherConfig<16, 8, 1, 4>;  // up to 2,048 entries, few queries
// Up to 2,048 entries, more queries than one CTA of each SM has clusters for.
using FewOfMany = GatherConfig<8, 8, 2, 1, 2>;

struct Params {
  indexer_kernel::Queries queries;
  const void* weights;  // [t, heads]
  indexer_kernel::Keys keys;
  const int32_t *pages, *sequence, *visible;
  int64_t pages_stride;
  int max_visible, k;
  int32_t* indices;  // [t, k]
  int64_t indices_stride;
  const int32_t* settled;  // or null: nothing may be read before the wait
};

// What a CTA knows of one digit after all counts have arrived.
struct Digit {
  int bin, left;      // where the k-th largest lies, and how many of the k lie in that bin
  int above, within;  // keys of the CTAs before this one in larger bins, and in that bin
  int total, before;  // keys that can be chosen: of the cluster, of the CTAs before this one
};

// Followed by the query (uint4), its weights (uint32_t) and the order keys of the slice.
template <class C>
struct alignas(16) Shared {
  ptx::Mbarrier received[2];            // of `counts`, by digit
  uint16_t counts[2][C::kCtas][kBins];  // from each CTA
  int bins[2][kBins];                   // of this CTA
  int warp_all[kBins / kWarp], warp_before[kBins / kWarp];
  int above[C::kWarps], equal[C::kWarps];
  Digit digit;
};
// Where the k-th largest lies, and how many of the k lie in that bin; keys in all bins.
struct Bin {
  int bin, left, total;
};
// Followed by the query, its weights and the order keys of all entries.
template <class C>
struct alignas(16) GatherShared {
  ptx::Mbarrier received;  // of order keys
  int bins[2][kBins];
  int of_warp[kBins / kWarp], before[C::kWarps];
  Bin found;
};

inline int64_t query_bytes(const Params& p) {
  return int64_t{16} * p.queries.b_words() + 4 * p.queries.weight_words();
}
template <class C>
int64_t shared_bytes(const Params& p) {
  return static_cast<int64_t>(sizeof(Shared<C>)) + query_bytes(p) + 2 * C::slice_of(p.max_visible);
}
template <class C>
int64_t gather_shared_bytes(const Params& p) {
  return static_cast<int64_t>(sizeof(GatherShared<C>)) + query_bytes(p) + 2 * C::kMost;
}

inline Params make_params(const IndexSelectArgs& args) {
  return {.queries = indexer_kernel::queries_of(args),
          .weights = args.weights.data,
          .keys = indexer_kernel::keys_of(args.keys),
          .pages = args.pages.as<int32_t>(),
          .sequence = args.sequence.as<int32_t>(),
          .visible = args.visible.as<int32_t>(),
          .pages_stride = args.pages.row_stride(),
          .max_visible = static_cast<int>(args.max_visible),
          .k = static_cast<int>(args.indices.dim(1)),
          .indices = args.indices.as<int32_t>(),
          .indices_stride = args.indices.row_stride(),
          .settled = args.settled.rank == 0 ? nullptr : args.settled.as<int32_t>()};
}

}  // namespace dsv4::index_select_kernel::sm90_few
