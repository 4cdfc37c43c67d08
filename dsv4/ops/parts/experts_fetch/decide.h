// Which experts of a layer keep a place in device memory, step by step, when not all of them fit.
//
// The places of a layer are numbered in this order:
//   fixed      experts that have no copy in host memory and never leave
//   slots      the cache: a miss may take the place of another expert
//   transient  hold an expert for one step only, when it is not worth a slot
// An expert without a place is at home, in host memory, where kernels can read it as well.
//
//   count[e]   c -= (c + 128) >> 8 in every step, then += 2^16 if the step chose e: uses, of which
//              half are forgotten after 177 steps
//   score(e)   16 lg(2^16 + count[e]) - 256 min(steps since the last use of e, 2^20)
//              lg(v): 256 log2(v), linear between powers of two and rounded down
//
// A miss takes an empty slot, or that of the lowest score (the lowest slot of equal ones) if its
// own score is not lower; else a transient place; else it is read at home. An expert that this step
// chose keeps its place. Chosen experts are taken in ascending order, so the outcome depends
// neither on the order of the choices nor on how many tokens chose an expert.
//
// All arithmetic is on integers: host and device decide alike.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::experts_fetch_kernel {

inline constexpr int32_t kHome = -1;   // instead of a place
inline constexpr int32_t kEmpty = -1;  // instead of an expert
inline constexpr uint32_t kOneUse = 1 << 16;
inline constexpr int32_t kCountWeight = 16;  // steps that a doubled count is worth
inline constexpr uint32_t kOldest = 1 << 20;

struct ExpertUse {
  uint32_t last_step = 0;  // 0: never
  uint32_t count = 0;      // in 1 / kOneUse
};

// The state of a layer. Steps count from 1; decide() begins the next one. Before the first step,
// clear() and then, for fixed experts and those that begin in a slot, put().
struct LayerPlaces {
  int experts = 0, fixed = 0, slots = 0, transient = 0;
  ExpertUse* uses = nullptr;     // [experts]
  int32_t* place_of = nullptr;   // [experts]: a place, or kHome
  int32_t* expert_in = nullptr;  // [places()]: an expert, or kEmpty
  uint32_t* step = nullptr;      // [1]
  int64_t* totals = nullptr;     // [experts]: steps that chose each, which decide nothing

  DSV4_HD int places() const { return fixed + slots + transient; }
  void clear() const {
    for (int e = 0; e < experts; ++e) uses[e] = {}, place_of[e] = kHome, totals[e] = 0;
    for (int p = 0; p < places(); ++p) expert_in[p] = kEmpty;
    *step = 0;
  }
  DSV4_HD void put(int expert, int place) const {
    place_of[expert] = place, expert_in[place] = expert;
  }
};

// The images of an expert that have to come from its home to a place before the step reads them.
struct Move {
  int32_t expert, place;
};

// What a step chose, in experts: each counts once.
struct Decision {
  int32_t hits = 0, moves = 0;
  int32_t at_home = 0;     // neither hits nor moves: read where they are
  int32_t impossible = 0;  // 1: some ids are not those of experts, and were left out
};

// One thread that decides alone. A warp has the same functions (sm90/kernels.cuh).
struct OneLane {
  static constexpr int kCount = 1;
  static int rank() { return 0; }
  static void sync() {}  // what lanes stored before, all lanes see
  static uint32_t ballot(bool yes) { return yes ? 1 : 0; }
  static int32_t lowest(int32_t value) { return value; }  // of all lanes
};

DSV4_HD inline int32_t lg(uint32_t value) {
  const auto as_float = static_cast<float>(value);
#if defined(__CUDA_ARCH__)
  const uint32_t bits = __float_as_uint(as_float);
#else
  const auto bits = std::bit_cast<uint32_t>(as_float);
#endif
  return static_cast<int32_t>(bits >> 15) - 256 * 127;
}

DSV4_HD inline int32_t score(const ExpertUse& use, uint32_t step) {
  const uint32_t age = step - use.last_step;
  const auto counted = static_cast<int32_t>(age < kOldest ? age : kOldest);
  return kCountWeight * lg(kOneUse + use.count) - 256 * counted;
}

// Marks the experts of the step; ids: [choices]. Returns whether all of them exist.
template <class Lanes>
DSV4_HD bool mark(const Lanes& lanes, const LayerPlaces& layer, uint32_t step, const int32_t* ids,
                  int choices) {
  int32_t possible = 1;
  for (int i = lanes.rank(); i < choices; i += lanes.kCount) {
    if (ids[i] < 0 || ids[i] >= layer.experts) {
      possible = 0;
    } else {
      layer.uses[ids[i]].last_step = step;
    }
  }
  lanes.sync();
  for (int e = lanes.rank(); e < layer.experts; e += lanes.kCount) {
    ExpertUse& use = layer.uses[e];
    use.count -= (use.count + 128) >> 8;
    if (use.last_step == step) use.count += kOneUse, ++layer.totals[e];
  }
  lanes.sync();
  return lanes.lowest(possible) == 1;
}

// The slot that a miss may take, or kHome.
template <class Lanes>
DSV4_HD int32_t slot_for(const Lanes& lanes, const LayerPlaces& layer, uint32_t step, int expert) {
  constexpr int32_t kNone = INT32_MAX;
  int32_t least = kNone, at = kNone;
  for (int slot = lanes.rank(); slot < layer.slots; slot += lanes.kCount) {
    const int32_t in = layer.expert_in[layer.fixed + slot];
    const bool is_used = in != kEmpty && layer.uses[in].last_step == step;
    const int32_t its = in == kEmpty ? INT32_MIN : is_used ? kNone : score(layer.uses[in], step);
    if (its < least) least = its, at = slot;
  }
  const int32_t lowest = lanes.lowest(least);
  const int32_t slot = lanes.lowest(least == lowest ? at : kNone);
  const bool takes = slot != kNone && score(layer.uses[expert], step) >= lowest;
  return takes ? layer.fixed + slot : kHome;
}

// One step. ids: [choices], in any order, repeated or not; moves: room for each expert that the
// step can choose. All lanes return the same.
template <class Lanes>
DSV4_HD Decision decide(const Lanes& lanes, const LayerPlaces& layer, const int32_t* ids,
                        int choices, Move* moves) {
  const uint32_t step = *layer.step + 1;
  lanes.sync();
  if (lanes.rank() == 0) *layer.step = step;
  const int first_transient = layer.fixed + layer.slots;
  for (int p = first_transient + lanes.rank(); p < layer.places(); p += lanes.kCount) {
    if (layer.expert_in[p] != kEmpty) layer.place_of[layer.expert_in[p]] = kHome;
    layer.expert_in[p] = kEmpty;
  }
  Decision decision;
  decision.impossible = mark(lanes, layer, step, ids, choices) ? 0 : 1;
  int next_transient = first_transient;
  for (int first = 0; first < layer.experts; first += lanes.kCount) {
    const int own = first + lanes.rank();
    const bool chosen = own < layer.experts && layer.uses[own].last_step == step;
    const bool is_home = chosen && layer.place_of[own] == kHome;
    for (uint32_t hits = lanes.ballot(chosen && !is_home); hits != 0; hits &= hits - 1)
      ++decision.hits;
    int expert = first;
    for (uint32_t misses = lanes.ballot(is_home); misses != 0; misses >>= 1, ++expert) {
      if ((misses & 1) == 0) continue;
      int32_t place = slot_for(lanes, layer, step, expert);
      if (place == kHome && next_transient < layer.places()) place = next_transient++;
      if (place == kHome) {
        ++decision.at_home;
        continue;
      }
      // All lanes have read the state: their least scores have met in lowest().
      if (lanes.rank() == 0) {
        if (layer.expert_in[place] != kEmpty) layer.place_of[layer.expert_in[place]] = kHome;
        layer.put(expert, place);
        moves[decision.moves] = {.expert = expert, .place = place};
      }
      lanes.sync();
      ++decision.moves;
    }
  }
  return decision;
}

}  // namespace dsv4::experts_fetch_kernel
