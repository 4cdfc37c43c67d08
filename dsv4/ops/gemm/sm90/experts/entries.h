// The pairs of a call in order of expert, and their entries: what the kernels of this folder walk.
// And where the images of an expert are.
//
// A pair is one slot of a token. Pairs are ordered by expert, then token, then slot; an entry is at
// most kPairs neighboring pairs of one expert, or fewer where Choices::entry_bits says so.

#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::gemm::experts {

inline constexpr int kPairs = 8;  // the columns of one mma
inline constexpr int kMaxExperts = 384;

// The kernel images of a layer's experts are at equal distances in one block, or wherever a table
// says, in memory of the device or in host memory that it reads.
struct ImagePlaces {
  const std::byte* first;  // that of expert 0
  int64_t distance;        // from one to the next
  const int64_t* table;    // [e] instead, if not null: the address of an expert's images
  int64_t offset;          // of this image from there

  DSV4_HD const std::byte* of(int expert) const {
    return table != nullptr ? reinterpret_cast<const std::byte*>(table[expert]) + offset
                            : first + expert * distance;
  }
};

struct alignas(16) Entry {
  int32_t expert;  // the place of its images
  int32_t first_pair, pairs, unused;
  int32_t token[kPairs];  // rows of x; with Choices::by_pair rows of y
};

// Where a CTA begins, with what it would otherwise look up: stage `stage` of entry `index`, which
// is `entry`; `stages` stages in all.
struct alignas(16) Start {
  int32_t index, stage, stages, unused;
  Entry entry;
};

// The two products, gate and up and down: how many stages an entry has.
inline constexpr int kProducts = 2;

// What the router has chosen. Device memory. The id of no expert, as damaged weights may give it,
// counts as expert 0 with weight 0: it adds nothing to the sum, and the pair has its place in the
// lists.
struct Choices {
  const int32_t* experts;  // [t, k]
  const float* weights;    // [t, k]
  int64_t expert_stride, weight_stride;
  int pairs, slots;  // t * k, k
  int count;         // experts that there are
  int entry_bits;    // an entry has at most 1 << entry_bits pairs
  // If not null, only experts of this turn have entries (ops/parts/experts/expert_turns.h). Pairs
  // of all experts have the same places in every turn.
  const int32_t* turn_of = nullptr;  // [count]
  int turn = 0;
  // And only experts [own_begin, own_end), those of the stack (ops/parts/experts/expert_stack.h).
  int own_begin = 0, own_end = kMaxExperts;
  // Pairs have rows of their own by token and slot, rather than those of their tokens.
  bool by_pair = false;

  DSV4_HD int expert(int pair) const { return exists(given(pair)) ? given(pair) : 0; }
  DSV4_HD float weight(int pair) const {
    return exists(given(pair)) ? weights[pair / slots * weight_stride + pair % slots] : 0;
  }
  DSV4_HD bool is_own(int expert) const { return own_begin <= expert && expert < own_end; }
  DSV4_HD bool is_listed(int expert) const {
    return is_own(expert) && (turn_of == nullptr || turn_of[expert] == turn);
  }
  DSV4_HD int row(int pair) const { return by_pair ? pair : pair / slots; }

 private:
  DSV4_HD int32_t given(int pair) const {
    return experts[pair / slots * expert_stride + pair % slots];
  }
  DSV4_HD bool exists(int32_t id) const { return id >= 0 && id < count; }
};

// Pointers to device memory.
struct PairLists {
  float* weight;             // [pairs] router weight
  int32_t* pair_of;          // [t, k] the pair of each slot of a token
  Entry* entries;            // [max_entries()]
  Start* starts[kProducts];  // [ctas]
  int ctas;
  int entry_stages[kProducts];
};

// Entries have one pair at least, and all entries of an expert but one are full.
inline int64_t max_entries(int64_t pairs, int64_t experts, int entry_bits) {
  const int64_t partial = pairs < experts ? pairs : experts, all = partial + (pairs >> entry_bits);
  return all < pairs ? all : pairs;
}

}  // namespace dsv4::gemm::experts
