// The tiles of a call and the slots of its pairs (gemm/sm90/grouped/config.cuh), in two launches of
// one CTA for 1,024 pairs:
//
//   count   how many pairs of the CTA each expert has
//   place   every CTA adds the counts of all CTAs, divides the pairs of each expert into tiles of
//           almost equal size, and gives its own pairs their slots; the first CTA stores the tiles
//
// Slots are in order of expert, then token, then slot of the token. Pairs of experts that are not
// the call's own have none.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/sm90/experts/count_pairs.cuh"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

using gemm::experts::Choices, gemm::experts::kMaxExperts;
using gemm::grouped::Tile, gemm::grouped::Tiling;

inline constexpr int kListThreads = gemm::experts::kListThreads;

struct Lists {
  Tiling tiling;
  int experts, ctas;
  int32_t* counts;  // [ctas, experts]
  Tile* tiles;      // [max_tiles]
  // [turns * kClasses + 1] the first tile of each class of each turn (gemm::grouped::Params), and
  // the end of all. Choices::turn is not used: the tiles of all turns are listed at once.
  int32_t* class_first;
  int turns;
  int32_t* done;               // [max_tiles] 0 of each tile (gemm::grouped::Params)
  int32_t *slot_of, *tile_of;  // [t, k] of each pair; -1: none
  int32_t* first_pair;         // [max_tiles] pairs before each tile in order of expert; or null
  int32_t* pair_at;            // [max_slots()] the pair of each slot that has one; or null

  const int32_t* end_of_tiles() const { return class_first + turns * gemm::grouped::kClasses; }
};

// The tiles of an expert with `pairs` pairs.
struct Split {
  int tiles, pairs,
      columns;  // of a tile, but that the last may have fewer pairs

  __device__ Split(const Tiling& tiling, int all) {
    tiles = (all + tiling.most - 1) / tiling.most;
    pairs = tiles == 0 ? 0 : (all + tiles - 1) / tiles;
    columns = tiling.columns_of(pairs);
  }
};

inline int64_t max_tiles(const Tiling& tiling, int64_t pairs, int64_t experts) {
  return std::min(pairs, experts) + pairs / tiling.most;
}
// A tile has at most one pair less than the first of its expert, and then up to step - 1 columns
// without a pair.
inline int64_t max_slots(const Tiling& tiling, int64_t pairs, int64_t experts) {
  return pairs + max_tiles(tiling, pairs, experts) * tiling.step;
}

__global__ void __launch_bounds__(kListThreads)
    count_kernel(const __grid_constant__ Choices in, const __grid_constant__ Lists out) {
  ptx::pdl_start();
  alignas(16) __shared__ gemm::experts::RoundCounts<> shared;
  const int first = static_cast<int>(blockIdx.x) * kListThreads, e = static_cast<int>(threadIdx.x);
  count_round(in, first, shared);
  const int count = gemm::experts::sum_counts<false>(in, first, shared);
  if (e < out.experts) out.counts[static_cast<int>(blockIdx.x) * out.experts + e] = count;
}

struct PlaceShared {
  gemm::experts::RoundCounts<> round;
  int warp_tiles[kSelectWarps], warp_slots[kSelectWarps], warp_pairs[kSelectWarps];
  // What each expert has:
  int before[kMaxExperts];  // pairs of the CTAs before
  int pairs[kMaxExperts];   // of a tile
  int first_tile[kMaxExperts], first_slot[kMaxExperts];
};

// The first tile of this thread's expert, where those of all turns before, of all larger classes of
// its turn and of lower experts of its class come first. The first CTA stores where classes begin.
__device__ inline int first_tile_of(const Split& split, const Choices& in, const Lists& out,
                                    PlaceShared& shared) {
  const int e = static_cast<int>(threadIdx.x);
  const int turn = split.tiles > 0 && in.turn_of != nullptr ? in.turn_of[e] : 0;
  const int own_class = turn * gemm::grouped::kClasses + out.tiling.class_of(split.columns);
  int first = 0, before = 0;
  if (blockIdx.x == 0 && e == 0) out.class_first[0] = 0;
  for (int c = 0; c < out.turns * gemm::grouped::kClasses; ++c) {
    const bool mine = split.tiles > 0 && own_class == c;
    const int tiles = mine ? split.tiles : 0, through = warp_sum_through(tiles);
    __syncthreads();  // the sums of the class before are not needed any more
    if (e % kWarp == kWarp - 1) shared.warp_tiles[e / kWarp] = through;
    __syncthreads();
    const WarpSums sums = sum_warps(shared.warp_tiles);
    if (mine) first = before + sums.before + through - tiles;
    before += sums.all;
    if (blockIdx.x == 0 && e == 0) out.class_first[c + 1] = before;
  }
  return first;
}

__global__ void __launch_bounds__(kListThreads)
    place_kernel(const __grid_constant__ Choices in, const __grid_constant__ Lists out) {
  ptx::pdl_start();
  alignas(16) __shared__ PlaceShared shared;
  const int cta = static_cast<int>(blockIdx.x), e = static_cast<int>(threadIdx.x);
  int all = 0, before = 0;
  for (int c = 0; c < out.ctas && e < out.experts; ++c) {
    const int count = out.counts[c * out.experts + e];
    if (c < cta) before += count;
    all += count;
  }
  const Split split(out.tiling, in.is_own(e) ? all : 0);
  const int slots = split.tiles * split.columns, slots_through = warp_sum_through(slots);
  const int pairs_through = warp_sum_through(all);
  if (e % kWarp == kWarp - 1)
    shared.warp_slots[e / kWarp] = slots_through, shared.warp_pairs[e / kWarp] = pairs_through;
  const int first_tile = first_tile_of(split, in, out, shared);
  const int first_slot = sum_warps(shared.warp_slots).before + slots_through - slots;
  const int first_pair = sum_warps(shared.warp_pairs).before + pairs_through - all;
  if (e < kMaxExperts) {
    shared.before[e] = before, shared.pairs[e] = split.pairs;
    shared.first_tile[e] = first_tile, shared.first_slot[e] = first_slot;
  }
  if (cta == 0) {
    for (int i = 0; i < split.tiles; ++i) {
      const int done = i * split.pairs;
      out.tiles[first_tile + i] = {.expert = e - in.own_begin,
                                   .first_slot = first_slot + i * split.columns,
                                   .pairs = min(split.pairs, all - done),
                                   .columns = split.columns};
      out.done[first_tile + i] = 0;
      if (out.first_pair != nullptr) out.first_pair[first_tile + i] = first_pair + done;
    }
  }
  const int first = cta * kListThreads;
  const gemm::experts::OwnPair own = count_round(in, first, shared.round);
  gemm::experts::sum_counts<true>(in, first, shared.round);
  __syncthreads();
  if (own.expert < 0) return;
  if (!in.is_own(own.expert)) {
    out.slot_of[own.index] = out.tile_of[own.index] = -1;
    return;
  }
  const int rank = shared.before[own.expert] +
                   shared.round.counts[threadIdx.x / kWarp][own.expert] + own.before();
  const int pairs = shared.pairs[own.expert], tile = rank / pairs;
  const int slot =
      shared.first_slot[own.expert] + tile * out.tiling.columns_of(pairs) + rank - tile * pairs;
  out.slot_of[own.index] = slot;
  out.tile_of[own.index] = shared.first_tile[own.expert] + tile;
  if (out.pair_at != nullptr) out.pair_at[slot] = own.index;
}

}  // namespace dsv4::experts_kernel::sm90_grouped
