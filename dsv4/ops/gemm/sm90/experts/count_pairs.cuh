// Counts pairs by expert, 1,024 in a round, one for each thread of a CTA. Lanes of a warp with the
// same expert find each other by a match, and the lowest of them stores their number:
// counts[warp][expert].

#pragma once

#include "dsv4/device/select.cuh"
#include "dsv4/ops/gemm/sm90/experts/entries.h"

namespace dsv4::gemm::experts {

inline constexpr int kListThreads = kSelectThreads;

template <int kExperts = kMaxExperts>
struct RoundCounts {
  uint16_t counts[kSelectWarps][kExperts];  // of a round; then pairs of warps before
};

// The pair of a thread in a round.
struct OwnPair {
  int index, expert;  // expert: -1 past the end
  unsigned peers;     // lanes with the same expert

  __device__ OwnPair(const Choices& in, int first) {
    index = first + static_cast<int>(threadIdx.x);
    expert = index < in.pairs ? in.expert(index) : -1;
    peers = __match_any_sync(~0u, expert);
  }
  __device__ int before() const { return __popc(peers & ((1u << threadIdx.x % kWarp) - 1)); }
};

// Warps with pairs in the round that starts at pair `first`.
__device__ inline int warps_of_round(const Choices& in, int first) {
  return (min(in.pairs - first, kListThreads) + kWarp - 1) / kWarp;
}

// Fills shared.counts.
template <int kExperts>
__device__ OwnPair count_round(const Choices& in, int first, RoundCounts<kExperts>& shared) {
  const int e = static_cast<int>(threadIdx.x), warps = warps_of_round(in, first);
  __syncthreads();  // the counts of the round before are not needed any more
  for (int w = 0; w < warps && e < kExperts; ++w) shared.counts[w][e] = 0;
  __syncthreads();
  const OwnPair own(in, first);
  if (own.expert >= 0 && own.before() == 0)
    shared.counts[threadIdx.x / kWarp][own.expert] = static_cast<uint16_t>(__popc(own.peers));
  __syncthreads();
  return own;
}

// Sum over the warps of the round; with `exclusive`, counts become the sums of the warps before.
template <bool kExclusive, int kExperts>
__device__ int sum_counts(const Choices& in, int first, RoundCounts<kExperts>& shared) {
  const int e = static_cast<int>(threadIdx.x), warps = warps_of_round(in, first);
  int sum = 0;
  for (int w = 0; w < warps && e < kExperts; ++w) {
    const int count = shared.counts[w][e];
    if (kExclusive) shared.counts[w][e] = static_cast<uint16_t>(sum);
    sum += count;
  }
  return sum;
}

}  // namespace dsv4::gemm::experts
