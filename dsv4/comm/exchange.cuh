// One exchange of a rank with the others, as a kernel: it stores what its rank computed into a
// window of each other rank, raises a flag there, waits for theirs, and copies what came.
//
//   window of a rank   two buffers of `buffer_bytes`, used in turn; other ranks write, it reads
//   flags of a rank    [world, kCtas] I64: exchanges that CTA b of rank r has stored here
//
//   rank r, CTA b      tensor -> share b of its values -> buffer e % 2 of every other rank
//                      flags[r, b] of every other rank = e
//                      waits for flags[*, b] of its own >= e
//                      share b of the values of every other rank -> tensor
//
// CTA b of a rank waits for CTA b of the others only, and all of them run together: kCtas CTAs a
// rank are few enough for that, also where several ranks share a GPU. So share b must be the same
// bytes for the rank that stores it and for those that copy it. Ranks may move values in different
// units, as their addresses allow; shares are divided in granules, which all ranks have in common.
//
// Two buffers are enough. A rank stores exchange e + 2 when its kernel of e + 1 has ended, so when
// every other rank has raised a flag of e + 1, so when their kernels of e have ended and have read
// the buffer of e. For this, every rank raises its flags in every exchange, also where it has
// nothing to give.

#pragma once

#include "dsv4/device/ptx/global_flag.cuh"

namespace dsv4::exchange {

inline constexpr int kMaxRanks = 8, kMaxTensors = 2;
inline constexpr int kCtas = 32, kThreads = 512;  // of a rank

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

  __device__ int owner(uint32_t row, int world) const {
    const int32_t id = ids[row];
    int r = 0;
    while (r < world && id >= ends[r]) ++r;
    return r < world && id >= 0 ? r : 0;
  }
};

// Why an exchange ended without the values. In host memory that kernels reach.
struct Fault {
  const char* what;  // Place of the exchange
  int64_t layer;
  int32_t peer;  // the rank that did not come
  int32_t failed;
};

struct ExchangeParams {
  int32_t rank, world, num_tensors;
  uint32_t receivers;  // bit r: rank r gets values
  int32_t granule;     // units; divides what every rank has of a row
  ExchangedTensor tensors[kMaxTensors];
  unsigned char* windows[kMaxRanks];
  int64_t* flags[kMaxRanks];
  int64_t buffer_bytes;
  int64_t* done;    // [kCtas]: exchanges of this rank
  int64_t* waited;  // nanoseconds that CTA 0 has waited in all of them
  // Host memory.
  int64_t* stop;  // not 0: no rank waits any more
  Fault* fault;
  int64_t limit_ns;
  const char* what;
  int64_t layer;
};

// The values of one rank that a CTA moves: body(row, column), in units, for `columns` of `rows`.
template <class Body>
__device__ void for_share(int32_t rows, int32_t columns, int32_t granule, int cta, int ctas,
                          const Body& body) {
  const int64_t granules = static_cast<int64_t>(rows) * columns / granule;
  const auto begin = static_cast<uint32_t>(granules * cta / ctas * granule);
  const auto end = static_cast<uint32_t>(granules * (cta + 1) / ctas * granule);
  const auto width = static_cast<uint32_t>(columns);
  for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x) body(i / width, i % width);
}

template <class Unit>
__device__ void store_to_others(const ExchangeParams& p, const ExchangedTensor& t, int64_t buffer,
                                int cta, int ctas) {
  const auto* from = static_cast<const Unit*>(t.from);
  const int32_t first = t.begin[p.rank];
  for_share(t.rows, t.count[p.rank], p.granule, cta, ctas, [&](uint32_t row, uint32_t column) {
    if (t.ids != nullptr && t.owner(row, p.world) != p.rank) return;
    const Unit value = from[row * t.from_stride + column];
    const int64_t at = static_cast<int64_t>(row) * t.columns + first + column;
    for (int r = 0; r < p.world; ++r) {
      if (r == p.rank || (p.receivers >> r & 1) == 0) continue;
      reinterpret_cast<Unit*>(p.windows[r] + buffer + t.window)[at] = value;
    }
  });
}

template <class Unit>
__device__ void copy_from_others(const ExchangeParams& p, const ExchangedTensor& t, int64_t buffer,
                                 int cta, int ctas) {
  const auto* window = reinterpret_cast<const Unit*>(p.windows[p.rank] + buffer + t.window);
  const auto copy = [&](uint32_t row, uint32_t at) {
    static_cast<Unit*>(t.to)[row * t.to_stride + at] =
        window[static_cast<int64_t>(row) * t.columns + at];
  };
  if (t.ids != nullptr) {
    for_share(t.rows, t.columns, p.granule, cta, ctas, [&](uint32_t row, uint32_t column) {
      if (t.owner(row, p.world) != p.rank) copy(row, column);
    });
    return;
  }
  for (int r = 0; r < p.world; ++r) {
    if (r == p.rank) continue;
    const int32_t first = t.begin[r];
    for_share(t.rows, t.count[r], p.granule, cta, ctas,
              [&](uint32_t row, uint32_t column) { copy(row, first + column); });
  }
}

// Whether all ranks have stored what this CTA is to copy. Called by all threads.
__device__ inline bool wait_for_others(const ExchangeParams& p, int64_t number, int cta, int ctas) {
  const auto r = static_cast<int>(threadIdx.x);
  bool came = true;
  if (r < p.world && r != p.rank)
    came = ptx::wait_for_flag(p.flags[p.rank] + r * ctas + cta, number, p.stop, p.limit_ns);
  if (!came) {
    // A CTA that ends because of another one leaves what that one wrote.
    if (*static_cast<volatile int64_t*>(p.stop) == 0)
      *p.fault = {.what = p.what, .layer = p.layer, .peer = r, .failed = 1};
    ptx::raise_flag(p.stop, 1);
  }
  return __syncthreads_or(!came) == 0;
}

// What CTA `cta` of `ctas` does. Every rank has as many CTAs.
template <class Unit>
__device__ void exchange(const ExchangeParams& p, int cta, int ctas) {
  const int64_t number = p.done[cta] + 1;
  const int64_t buffer = number % 2 * p.buffer_bytes;
  for (int i = 0; i < p.num_tensors; ++i) store_to_others<Unit>(p, p.tensors[i], buffer, cta, ctas);
  __syncthreads();  // all threads have stored, and have read p.done
  const auto r = static_cast<int>(threadIdx.x);
  if (r < p.world && r != p.rank) ptx::raise_flag(p.flags[r] + p.rank * ctas + cta, number);
  if (r == 0) p.done[cta] = number;
  const int64_t begin = ptx::global_nanoseconds();
  if (!wait_for_others(p, number, cta, ctas)) return;
  if (r == 0 && cta == 0) *p.waited += ptx::global_nanoseconds() - begin;
  for (int i = 0; i < p.num_tensors; ++i)
    if (p.tensors[i].to != nullptr) copy_from_others<Unit>(p, p.tensors[i], buffer, cta, ctas);
}

}  // namespace dsv4::exchange
