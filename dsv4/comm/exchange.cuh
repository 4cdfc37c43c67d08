// One exchange of a rank with the others, as a kernel: it stores what its rank computed into a
// window of each other rank, raises a flag there, waits for theirs, and copies what came.
//
//   window of a rank   two buffers of `buffer_bytes`, used in turn; other ranks write, it reads
//   flags of a rank    [world, kCtas] I64: exchanges that CTA b of rank r has stored here
//
//   rank r, CTA b      share b of its values -> buffer e % 2 of every other rank
//                      flags[r, b] of every other rank = e
//                      waits for flags[*, b] of its own >= e
//                      share b of the values of every other rank -> tensor
//
// Half of the warps store and raise flags, the other half wait and copy.
//
// CTA b of a rank waits for CTA b of the others only, and all of them run together: kCtas CTAs a
// rank are few enough for that, also where several ranks share a GPU. So share b must be the same
// bytes for the rank that stores it and for those that copy it. Ranks may move values in different
// units, as their addresses allow; shares are divided in granules, which all ranks have in common.
//
// Two buffers are enough. A rank stores exchange e + 2 when its kernel of e + 1 has ended, so when
// every other rank has raised a flag of e + 1, so when their kernels of e have ended and have read
// the buffer of e. For this, every rank raises its flags in every exchange, also where it has
// nothing to give. Exchanges of few bytes go another way (exchange_words.cuh).
//
// A tensor in symmetric memory (symmetric_memory.h) needs no window: share b of a rank's values
// goes to where the others have the tensor, and nothing is copied there. Where kernels before have
// stored them already, a rank only raises its flags; the others do not notice. Where no rank moves
// anything, one CTA is enough: the numbers of all CTAs advance in every exchange, and the flags of
// the other CTAs catch up in the next exchange that has them.

#pragma once

#include "dsv4/device/peer_words.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"

namespace dsv4::exchange {

inline constexpr int kMaxRanks = PeerWords::kMostRanks, kMaxTensors = 2;
inline constexpr int kCtas = 128, kThreads = 512;  // of a rank

// How the values of a rank reach the others.
enum class Way : uint8_t {
  kWindow,  // through their windows
  kDirect,  // stored where they have the tensor
  kStored,  // they are there
};

// A tensor of which every rank has some columns, or some rows. Sizes are in units of the kernel's
// type, the offset in the window in bytes.
struct ExchangedTensor {
  const void* from;                // [rows, own columns], of this rank
  void* to;                        // [rows, columns]; null: this rank gets nothing
  int64_t from_stride, to_stride;  // of rows
  int64_t window;                  // where the buffer has [rows, columns]
  int32_t rows, columns;           // the buffer's, too
  int32_t begin[kMaxRanks];        // first column of each rank
  int32_t count[kMaxRanks];        // columns of each rank
  // [rows]: the rank r gives a row where ids[row] is in [ends[r - 1], ends[r]), rank 0 where it is
  // nowhere; null: each rank gives its columns
  const int32_t* ids;
  int32_t ends[kMaxRanks];
  Way way;

  __device__ int owner(uint32_t row, int world) const {
    const int32_t id = ids[row];
    int r = 0;
    while (r < world && id >= ends[r]) ++r;
    return r < world && id >= 0 ? r : 0;
  }
};

struct ExchangeParams {
  int32_t rank, world, num_tensors;
  uint32_t receivers;  // bit r: rank r gets values
  int32_t granule;     // units; divides what every rank has of a row
  ExchangedTensor tensors[kMaxTensors];
  unsigned char* windows[kMaxRanks];
  ptx::NumberedWord* words[kMaxRanks];  // of exchange_words.cuh
  int64_t distance[kMaxRanks];          // to symmetric memory of each rank, from that of this one
  int64_t* flags[kMaxRanks];
  int64_t buffer_bytes;
  PeerWait wait;
};

// Which units of one rank are moved at a time, and by which threads.
struct Share {
  int index, count;     // of equal shares
  int thread, threads;  // that move it
};

// store(row, column, load(row, column)) for a share of `columns` of `rows`, in units. A thread has
// loaded several before it stores the first.
template <class Unit, class Load, class Store>
__device__ void move_share(int32_t rows, int32_t columns, int32_t granule, const Share& share,
                           const Load& load, const Store& store) {
  constexpr uint32_t kBatch = 4;
  const int64_t granules = static_cast<int64_t>(rows) * columns / granule;
  const auto begin = static_cast<uint32_t>(granules * share.index / share.count * granule);
  const auto end = static_cast<uint32_t>(granules * (share.index + 1) / share.count * granule);
  const auto width = static_cast<uint32_t>(columns);
  for (uint32_t first = begin + share.thread; first < end; first += kBatch * share.threads) {
    Unit values[kBatch];
#pragma unroll
    for (uint32_t j = 0; j < kBatch; ++j) {
      const uint32_t i = first + j * share.threads;
      if (i < end) values[j] = load(i / width, i % width);
    }
#pragma unroll
    for (uint32_t j = 0; j < kBatch; ++j) {
      const uint32_t i = first + j * share.threads;
      if (i < end) store(i / width, i % width, values[j]);
    }
  }
}

template <class Unit>
__device__ void store_to_others(const ExchangeParams& p, const ExchangedTensor& t, int64_t buffer,
                                const Share& share) {
  const auto* from = static_cast<const Unit*>(t.from);
  const int32_t first = t.begin[p.rank];
  const auto load = [&](uint32_t row, uint32_t column) {
    return from[row * t.from_stride + column];
  };
  const bool direct = t.way == Way::kDirect;
  const int64_t stride = direct ? t.to_stride : t.columns;
  const auto store = [&](uint32_t row, uint32_t column, const Unit& value) {
    if (t.ids != nullptr && t.owner(row, p.world) != p.rank) return;
    const int64_t at = row * stride + first + column;
    for (int r = 0; r < p.world; ++r) {
      if (r == p.rank || (p.receivers >> r & 1) == 0) continue;
      auto* const to = direct ? static_cast<unsigned char*>(t.to) + p.distance[r]
                              : p.windows[r] + buffer + t.window;
      reinterpret_cast<Unit*>(to)[at] = value;
    }
  };
  move_share<Unit>(t.rows, t.count[p.rank], p.granule, share, load, store);
}

template <class Unit>
__device__ void copy_from_others(const ExchangeParams& p, const ExchangedTensor& t, int64_t buffer,
                                 const Share& share) {
  const auto* window = reinterpret_cast<const Unit*>(p.windows[p.rank] + buffer + t.window);
  for (int r = 0; r < p.world; ++r) {
    if (r == p.rank) continue;
    const int32_t first = t.begin[r];
    const auto load = [&](uint32_t row, uint32_t column) {
      return window[static_cast<int64_t>(row) * t.columns + first + column];
    };
    const auto store = [&](uint32_t row, uint32_t column, const Unit& value) {
      if (t.ids != nullptr && t.owner(row, p.world) != r) return;
      static_cast<Unit*>(t.to)[row * t.to_stride + first + column] = value;
    };
    move_share<Unit>(t.rows, t.count[r], p.granule, share, load, store);
  }
}

// The warps that store.
template <class Unit>
__device__ void give(const ExchangeParams& p, int64_t number, int cta, int ctas) {
  const int threads = static_cast<int>(blockDim.x) / 2, thread = static_cast<int>(threadIdx.x);
  const int64_t buffer = number % 2 * p.buffer_bytes;
  const Share share{cta, ctas, thread, threads};
  for (int i = 0; i < p.num_tensors; ++i)
    if (p.tensors[i].way != Way::kStored) store_to_others<Unit>(p, p.tensors[i], buffer, share);
  ptx::barrier_sync(1, threads);  // all of them have stored
  if (thread < p.world && thread != p.rank)
    ptx::raise_flag(p.flags[thread] + p.rank * kCtas + cta, number);
}

// The warps that copy. Each waits for itself, and copies nothing when a rank did not come.
template <class Unit>
__device__ void take(const ExchangeParams& p, int64_t number, int cta, int ctas) {
  const int threads = static_cast<int>(blockDim.x) / 2,
            thread = static_cast<int>(threadIdx.x) - threads;
  const int r = thread % 32;
  bool came = true;
  if (r < p.world && r != p.rank)
    came =
        ptx::wait_for_flag(p.flags[p.rank] + r * kCtas + cta, number, p.wait.stop, p.wait.limit_ns);
  if (!came) leave(p.wait, r);
  if (!__all_sync(~0u, came)) return;
  __syncwarp();  // what the lanes that waited have seen
  const int64_t buffer = number % 2 * p.buffer_bytes;
  const Share share{cta, ctas, thread, threads};
  for (int i = 0; i < p.num_tensors; ++i)
    if (p.tensors[i].to != nullptr && p.tensors[i].way == Way::kWindow)
      copy_from_others<Unit>(p, p.tensors[i], buffer, share);
}

// The end of an exchange that CTA `cta` of `ctas` began at `begin`.
__device__ inline void count(const ExchangeParams& p, int64_t number, int64_t begin, int cta,
                             int ctas) {
  count_exchange(p.wait, number, cta == ctas - 1 ? begin : 0, cta, ctas);
}

// What CTA `cta` of `ctas` does. Every rank has as many CTAs.
template <class Unit>
__device__ void exchange(const ExchangeParams& p, int cta, int ctas) {
  const int64_t number = p.wait.done[cta] + 1;
  const int64_t begin = ptx::global_nanoseconds();
  threadIdx.x < blockDim.x / 2 ? give<Unit>(p, number, cta, ctas)
                               : take<Unit>(p, number, cta, ctas);
  count(p, number, begin, cta, ctas);
}

}  // namespace dsv4::exchange
