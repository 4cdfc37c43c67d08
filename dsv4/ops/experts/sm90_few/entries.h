// The pairs of a call in order of expert, and their entries: what the kernels of this folder walk.
//
// A pair is one slot of a token. Pairs are ordered by expert, then token, then slot; an entry is at
// most kPairs neighboring pairs of one expert.

#pragma once

#include <cstdint>

namespace dsv4::experts_few {

inline constexpr int kPairs = 8;  // the columns of one mma

struct Entry {
  int32_t expert, first_pair, pairs;
};

// Pointers to device memory.
struct PairLists {
  int32_t* token;    // [pairs] row of x
  float* weight;     // [pairs] router weight
  int32_t* pair_of;  // [t, k] the pair of each slot of a token
  Entry* entries;    // [max_entries()]
  int32_t* num_entries;
};

// Entries have one pair at least, and all entries of an expert but one are full.
inline int64_t max_entries(int64_t pairs, int64_t experts) {
  const int64_t partial = pairs < experts ? pairs : experts, all = partial + pairs / kPairs;
  return all < pairs ? all : pairs;
}

}  // namespace dsv4::experts_few
