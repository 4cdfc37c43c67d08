// The pairs of a call of at most 32, listed by one warp of each CTA: what list_pairs.cuh lists.

#pragma once

#include <climits>

#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"

namespace dsv4::gemm::experts_e4m3 {

// pair_of: null except in one CTA
__device__ inline void list_own(const gemm::experts::Choices& in, int32_t* pair_of, OwnList& to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool exists = lane < in.pairs;
  const int expert = exists ? in.expert(lane) : INT_MAX;
  const float weight = exists ? in.weight(lane) : 0;
  const unsigned peers = __match_any_sync(~0u, expert);
  const int before = __popc(peers & ((1u << lane) - 1));  // pairs of this expert
  const int most = 1 << in.entry_bits, in_entry = before & (most - 1);
  const bool listed = exists && in.is_listed(expert);
  const unsigned first_of_entry = __ballot_sync(~0u, listed && in_entry == 0);
  int pair = before, entry = before >> in.entry_bits;
  for (int j = 0; j < in.pairs; ++j) {
    if (__shfl_sync(~0u, expert, j) >= expert) continue;
    ++pair;
    entry += static_cast<int>(first_of_entry >> j & 1u);
  }
  if (lane == 0) to.count = __popc(first_of_entry);
  if (!exists) return;
  to.weight[pair] = weight;
  if (pair_of != nullptr) pair_of[lane] = pair;
  if (!listed) return;
  Entry& own = to.entries[entry];
  own.token[in_entry] = in.row(lane);
  if (in_entry != 0) return;
  own.expert = expert - in.own_begin, own.first_pair = pair;
  own.pairs = min(most, __popc(peers) - before);
}

}  // namespace dsv4::gemm::experts_e4m3
