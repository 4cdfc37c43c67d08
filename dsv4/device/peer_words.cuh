// What kernels do in an exchange by words (peer_words.h): of a kernel of its own
// (comm/exchange_words.cuh), or inside of one that computes with the values.

#pragma once

#include "dsv4/device/peer_words.h"
#include "dsv4/device/ptx/peer_flag.cuh"

namespace dsv4 {

// Ends all waiting because a rank did not come. A thread that leaves because of another one keeps
// what that one wrote.
__device__ inline void leave(const PeerWait& wait, int missing) {
  if (*static_cast<volatile int64_t*>(wait.stop) == 0)
    *wait.fault = {.what = wait.what, .layer = wait.layer, .peer = missing, .failed = 1};
  ptx::raise_flag(wait.stop, 1);
}

// The end of an exchange in CTA `cta` of `ctas`, by all of its threads. Grids of several sizes
// follow each other, so the CTAs share all places out. waited_since: of the CTA whose time counts,
// else 0
__device__ inline void count_exchange(const PeerWait& wait, int64_t number, int64_t waited_since,
                                      int cta, int ctas) {
  __syncthreads();  // all threads have read wait.done
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  for (int i = cta + ctas * thread; i < PeerWait::kPlaces; i += ctas * threads)
    wait.done[i] = number;
  if (thread == 0 && waited_since != 0) *wait.waited += ptx::global_nanoseconds() - waited_since;
}

// The buffer of this exchange among the words of a rank.
__device__ inline ptx::NumberedWord* buffer_of(ptx::NumberedWord* words, int64_t number) {
  return words + number % 2 * PeerWords::kInBuffer;
}

// The exchange of one kernel. begin() comes after its wait for the kernels before, and end() last.
struct WordExchange {
  const PeerWords& peers;
  int64_t number = 0;

  __device__ explicit WordExchange(const PeerWords& p) : peers(p) {}

  __device__ void begin(int cta) { number = peers.wait.done[cta] + 1; }
  // As count_exchange().
  __device__ void end(int64_t waited_since, int cta, int ctas) const {
    count_exchange(peers.wait, number, waited_since, cta, ctas);
  }
  // The rank that has a column.
  __device__ int owner(int column) const {
    int r = 0;
    while (r + 1 < peers.world && column >= peers.end[r]) ++r;
    return r;
  }
  __device__ void give(int64_t word, uint64_t value) const {
    for (int r = 0; r < peers.world; ++r)
      if (r != peers.rank)
        ptx::store_numbered(buffer_of(peers.words[r], number) + word, value, number);
  }
  // What `owner` has given; anything when that rank did not come.
  __device__ uint64_t take(int64_t word, int owner) const {
    uint64_t value = 0;
    const ptx::NumberedWord* const from = buffer_of(peers.words[peers.rank], number) + word;
    if (!ptx::wait_for_numbered(from, number, value, peers.wait.stop, peers.wait.limit_ns))
      leave(peers.wait, owner);
    return value;
  }
};

}  // namespace dsv4
