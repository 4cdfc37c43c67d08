// The k largest of n unsigned keys, exactly, by one block: radix selection of the k-th largest,
// then a visit of the chosen in ascending index. Of keys equal to the k-th the lowest indices are
// taken.
//
// Keys are not stored: a source gives them in each of the five passes. Key 0 is never chosen.
//
//   float load(int i) const              reads value i, nothing else: eight are asked for at a time
//   uint32_t key(float x, int i) const   its key

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/device/math.cuh"

namespace dsv4 {

inline constexpr int kSelectThreads = 1024;  // of the block, for everything here
inline constexpr int kSelectWarps = kSelectThreads / kWarp;
inline constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
static_assert(kBins == 2 * kSelectThreads, "a thread reads two bins");

// Unsigned order of the keys = order of the floats, -0 = +0; 0 for -inf and NaN.
__device__ inline uint32_t order_key(float x) {
  if (!(x > -INFINITY)) return 0;
  const auto bits = std::bit_cast<uint32_t>(__fadd_rn(x, 0.f));
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float from_order_key(uint32_t key) {
  return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

struct SelectShared {
  int bins[kBins];
  int warps[kSelectWarps];
  int above[kSelectWarps], equal[kSelectWarps];
  uint32_t digit;
  int left, total;
};

// All keys above `bound`, and the first `equal` of those equal to it.
struct Selection {
  uint32_t bound;
  int equal;
};

// Sum of x over the lanes up to this one.
__device__ inline int warp_sum_through(int x) {
  const int lane = threadIdx.x % kWarp;
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(~0u, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// Sum of x over the warps before this one, and over all of them; x: one a warp, in shared memory.
struct WarpSums {
  int before, all;
};
__device__ inline WarpSums sum_warps(const int* x) {
  static_assert(kSelectWarps == kWarp, "a lane for each");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int mine = x[lane], through = warp_sum_through(mine);
  return {__shfl_sync(~0u, through - mine, warp), __shfl_sync(~0u, through, kWarp - 1)};
}

// Sum of x over the threads before this one.
__device__ inline int block_sum_before(int x, SelectShared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int inclusive = warp_sum_through(x);
  if (lane == kWarp - 1) shared.warps[warp] = inclusive;
  __syncthreads();
  return sum_warps(shared.warps).before + inclusive - x;
}

// Keys first, first + step, ...; 0 from `end` on. One at a time would wait for memory by itself.
inline constexpr int kBatch = 8;
template <class Source>
__device__ void load_batch(const Source& source, int first, int step, int end,
                           uint32_t (&keys)[kBatch]) {
  float values[kBatch];
#pragma unroll
  for (int u = 0; u < kBatch; ++u) values[u] = source.load(min(first + u * step, end - 1));
#pragma unroll
  for (int u = 0; u < kBatch; ++u) {
    const int i = first + u * step;
    keys[u] = i < end ? source.key(values[u], i) : 0;
  }
}

// One digit of the k-th largest among the keys that agree with `bound` under `mask`: its bin goes
// to shared.digit, and how many of the k lie in it to shared.left. An empty mask: all keys, and
// shared.total counts them.
template <class Source>
__device__ void select_digit(const Source& source, int n, int k, uint32_t bound, uint32_t mask,
                             int shift, SelectShared& shared) {
  for (int i = threadIdx.x; i < kBins; i += kSelectThreads) shared.bins[i] = 0;
  __syncthreads();
  for (int first = threadIdx.x; first < n; first += kBatch * kSelectThreads) {
    uint32_t keys[kBatch];
    load_batch(source, first, kSelectThreads, n, keys);
    for (const uint32_t key : keys) {
      if (key != 0 && (key & mask) == bound) {
        atomicAdd(&shared.bins[(key >> shift) & (kBins - 1)], 1);
      }
    }
  }
  __syncthreads();
  const int high = kBins - 1 - 2 * static_cast<int>(threadIdx.x), low = high - 1;  // descending
  const int in_high = shared.bins[high], in_low = shared.bins[low];
  const int before = block_sum_before(in_high + in_low, shared);
  const int to_high = before + in_high, to_low = to_high + in_low;
  if (before < k && k <= to_high) shared.digit = high, shared.left = k - before;
  if (to_high < k && k <= to_low) shared.digit = low, shared.left = k - to_high;
  if (mask == 0 && threadIdx.x == kSelectThreads - 1) shared.total = to_low;
  __syncthreads();
}

// Every thread gets the same answer. Afterwards shared.total is the number of keys that can be
// chosen. k > 0.
template <class Source>
__device__ Selection select_largest(const Source& source, int n, int k, SelectShared& shared) {
  uint32_t bound = 0, mask = 0;
  // 3 x 11 bits of 32: the last two digits share a bit, which is settled when the last one comes.
  for (const int shift : {21, 10, 0}) {
    select_digit(source, n, k, bound, mask, shift, shared);
    if (mask == 0 && shared.total <= k) return {.bound = 0, .equal = 0};
    bound |= shared.digit << shift;
    mask |= static_cast<uint32_t>(kBins - 1) << shift;
    k = shared.left;
  }
  return {.bound = bound, .equal = k};
}

// Calls take(rank, i, key) for every chosen i, rank counting them in ascending i. Returns their
// number. Warps own consecutive stretches of the indices.
template <class Source, class Take>
__device__ int visit_selected(const Source& source, int n, const Selection& selection,
                              SelectShared& shared, const Take& take) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int stretch = static_cast<int>(align_up(ceil_div(n, kSelectWarps), kWarp));
  const int begin = warp * stretch, end = min(begin + stretch, n);
  const auto above = [&](uint32_t key) { return __ballot_sync(~0u, key > selection.bound); };
  const auto equal = [&](uint32_t key) {
    return __ballot_sync(~0u, key == selection.bound && key != 0);
  };
  int num_above = 0, num_equal = 0;
  uint32_t keys[kBatch];
  for (int first = begin; first < end; first += kBatch * kWarp) {
    load_batch(source, first + lane, kWarp, end, keys);
    for (const uint32_t key : keys) {
      num_above += __popc(above(key));
      num_equal += __popc(equal(key));
    }
  }
  if (lane == 0) shared.above[warp] = num_above, shared.equal[warp] = num_equal;
  __syncthreads();
  const WarpSums sum_above = sum_warps(shared.above), sum_equal = sum_warps(shared.equal);
  int above_before = sum_above.before, equal_before = sum_equal.before;
  const unsigned lanes_before = (1u << lane) - 1;
  for (int first = begin; first < end; first += kBatch * kWarp) {
    load_batch(source, first + lane, kWarp, end, keys);
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const unsigned is_above = above(keys[u]), is_equal = equal(keys[u]);
      const int equal_rank = equal_before + __popc(is_equal & lanes_before);
      const bool mine_above = (is_above >> lane & 1) != 0;
      const bool mine_equal = (is_equal >> lane & 1) != 0 && equal_rank < selection.equal;
      if (mine_above || mine_equal) {
        const int rank = above_before + __popc(is_above & lanes_before);
        take(rank + min(equal_rank, selection.equal), first + u * kWarp + lane, keys[u]);
      }
      above_before += __popc(is_above);
      equal_before += __popc(is_equal);
    }
  }
  __syncthreads();  // `shared` may be used again
  return sum_above.all + min(sum_equal.all, selection.equal);
}

}  // namespace dsv4
