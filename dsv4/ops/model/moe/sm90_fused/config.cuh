// Sizes, parameters and shared memory of the two kernels in this folder: routed gate and up with
// the shared expert's w2, and routed down with the sums of a token. What multiplies a stage of
// routed weights, and its shared memory, are those of experts/sm90_few_e4m3.

#pragma once

#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"
#include "dsv4/ops/parts/router/routing.cuh"

namespace dsv4::moe_kernel::sm90_fused {

namespace e4m3 = gemm::experts_e4m3;
using gemm::experts::Entry;
using gemm::experts::kPairs;

inline constexpr int kMaxTokens = 2, kMaxSlots = 8, kMaxEntries = kMaxTokens * kMaxSlots;
using gemm::experts::kMaxExperts;

// The roles of a CTA: 16 math warps and 2 of the epilogue as in experts/sm90_few_e4m3; warp 18
// routes the first token, lists the entries and copies routed weights; warp 19 copies w2 of the
// shared expert and routes the second token.
inline constexpr int kMathThreads = e4m3::kMathWarps * kWarp;
inline constexpr int kGroupThreads = e4m3::kGroupWarps * kWarp;
inline constexpr int kListWarp = e4m3::kProducerWarp, kHelperWarp = kListWarp + 1;
inline constexpr int kThreads = e4m3::kThreads;

// Named barriers beside those of experts/sm90_few_e4m3 (1 .. 6): math warps have stored the keys;
// the helper has stored its choices; the entries are listed; epilogue warps have their weights.
inline constexpr int kKeysBarrier = 7, kChoicesBarrier = 8, kListedBarrier = 9,
                     kWeightsBarrier = 10;
inline constexpr int kListedThreads = kThreads - kWarp;  // all but the helper

// Routing of a step. An entry is an expert and the tokens that chose it, in ascending order of
// expert: pair `tokens * entry + token`. A token that chose an expert twice (a hash table may say
// so) has it in two entries.
struct Routes {
  alignas(
      16) uint32_t keys[kMaxTokens][kMaxExperts];  // router_kernel::ordered(); kTaken past the last
  Entry entries[kMaxEntries];
  uint32_t tokens_of[kMaxEntries];         // of an entry: bit t for token t
  float weight[kMaxTokens * kMaxEntries];  // of a pair; 0 where the token did not choose the expert
  int expert[kMaxEntries], entry_of[kMaxEntries];  // of slot s of token t: [slots * t + s]
  int count;                                       // entries
  gemm::experts::Range expected;  // of gate and up, if all choices are of different experts
};

// Tiles of activations: gate and up needs 32 of x and 16 of the shared expert's hidden values; down
// has rows of as many items as there is room for.
inline constexpr int kXTiles = e4m3::kMaxColumns / e4m3::kQ8Group, kHiddenTiles = 16;
inline constexpr int kTiles = kXTiles + kHiddenTiles;

template <int K, ImageScale kScale = ImageScale::kE4M4>
using Shared = e4m3::Shared<K, kScale, kTiles, Routes, 7 << 10>;
template <int K, ImageScale kScale = ImageScale::kE4M4>
inline constexpr bool kFits = sizeof(Shared<K, kScale>) <= sm90::kMaxSmem;
static_assert(kFits<2> && kFits<3> && kFits<4> && Shared<3>::kStages == 6);
static_assert(kFits<4, ImageScale::kUe8m0> && kFits<4, ImageScale::kE4M3>);

// w2 of the shared expert beside routed gate and up: a CTA has 32 rows, half of what wgmma
// multiplies, so that almost all CTAs have the same work. Warpgroup r has the columns of rank r of
// a small-M product.
inline constexpr int kSharedRows = 32;
inline constexpr int kRankGroups = kHiddenTiles / e4m3::kGroups;  // of 128 columns, at most

// Calls body(config): the Config of w2 (gemm/sm90/small_m).
template <class Body>
void with_shared_config(gemm::Format format, const Body& body) {
  using gemm::Format;
  if (format == Format::kKbit4) return body(gemm::Config<Format::kKbit4, kMaxTokens>{});
  if (format == Format::kKbit5) return body(gemm::Config<Format::kKbit5, kMaxTokens>{});
  body(gemm::Config<Format::kFp8, kPairs>{});
}

// Down: how a CTA has rows of acc and entries. C: the Config of w2 of the shared expert, or
// NoShared.
struct NoShared {};
template <int kTokens_, class C>
struct DownShape {
  static constexpr bool kHasShared = !std::is_same_v<C, NoShared>;
  static constexpr int kTokens = kTokens_, kItemEntries = kHasShared ? 4 : 2;
  static constexpr int kItemStrips = e4m3::kStrips / kItemEntries;
  static constexpr int kRows = kItemStrips * gemm::kUnitRows;  // of a CTA
  static constexpr int kWidth = kItemEntries * kTokens;        // pairs of an item
  static constexpr int kPairBits = kWidth == 2 ? 1 : 2;
  static_assert(kWidth == 1 << kPairBits);

  __device__ static int items(const Routes& routes) {
    return (routes.count + kItemEntries - 1) / kItemEntries;
  }
};
inline constexpr int kDownRows = DownShape<1, NoShared>::kRows;

struct GateUpParams {
  router_kernel::Routing router;  // stores nothing
  int tokens;
  gemm::experts::Params routed;
  gemm::Params<1> shared;  // y = w2 h of the shared expert; boxes of kSharedRows
  int shared_tiles;        // the last CTAs have one each
  int32_t* chosen;         // [k] of the first token; null: not stored
};

struct DownParams {
  router_kernel::Routing router;
  bool waits_first;  // the logits may not be complete when the kernel starts
  gemm::experts::Params routed;
  int slots;  // items whose activations are in shared memory at a time
  // What the shared expert adds: of a whole block [t, D], which gate and up computed; of a part
  // (moe_output.h) null: its w2 is a product of this kernel, in boxes of as many rows as a CTA has.
  const bf16* shared_y;
  int64_t shared_stride;
  gemm::Params<1> shared;
  float* acc;  // [t, D]
  int64_t acc_stride;
};

}  // namespace dsv4::moe_kernel::sm90_fused
