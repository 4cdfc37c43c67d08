// Exchanges of a rank with the others (comm/communicator.h) as the parameters of kernels: how they
// wait, and an exchange that a kernel makes while it computes (peer_words.cuh).

#pragma once

#include <cstdint>

namespace dsv4 {

namespace ptx {
struct NumberedWord;  // ptx/peer_flag.cuh
}

// Why an exchange ended without the values. In host memory that kernels reach.
struct PeerFault {
  const char* what;  // Place of the exchange
  int64_t layer;
  int32_t peer;  // the rank that did not come
  int32_t failed;
};

// What all exchanges of a rank have in common, and the place of this one.
struct PeerWait {
  static constexpr int kPlaces = 1024;  // CTAs of an exchange, at most

  int64_t* done = nullptr;    // [kPlaces]: exchanges of this rank, one number; a CTA reads its own
  int64_t* waited = nullptr;  // nanoseconds of one CTA in all of them
  // Host memory.
  int64_t* stop = nullptr;  // not 0: no rank waits any more
  PeerFault* fault = nullptr;
  int64_t limit_ns = 0;
  const char* what = nullptr;
  int64_t layer = 0;
};

// An exchange of the columns of a tensor [rows, d], in words of eight bytes that carry the number
// of the exchange (comm/exchange_words.cuh). Word i has bytes [8 i, 8 i + 8) of the tensor without
// gaps. A kernel that takes it gives every word of its rank's columns to all other ranks, and waits
// for every word of theirs. Every rank has columns, in whole words.
struct PeerWords {
  static constexpr int kMostRanks = 8;
  static constexpr int64_t kBytes = 8;                       // of a word
  static constexpr int64_t kMostBytes = int64_t{1} << 20;    // of an exchange
  static constexpr int64_t kInBuffer = kMostBytes / kBytes;  // words

  int32_t rank = 0, world = 0;                // world 0: no exchange
  int32_t end[kMostRanks] = {};               // columns of each rank
  ptx::NumberedWord* words[kMostRanks] = {};  // of each rank: two buffers, used in turn
  PeerWait wait{};

  bool empty() const { return world == 0; }
};

}  // namespace dsv4
