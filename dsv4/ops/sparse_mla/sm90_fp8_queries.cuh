// What an item needs before its first product: its description, its q in shared memory, a fresh
// reference. The computing warpgroups do it for a block's first item, while the first rows are on
// their way; the gathering one for the others, while the item before is at its last values.

#pragma once

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"

namespace dsv4::sm90_fp8 {

// kCount threads, of which this is number `thread`. By 64 dims q is [heads, 4] pieces of 16 dims in
// shared memory: of all pieces in this order a thread has every kCount-th, so that the next one is
// a constant offset further and in the same column of its head.
template <class Row, int kHeads, int kCount>
struct Queries {
  using S = Shared<Row, kHeads>;
  static constexpr int kAll = kHeads * 4 * S::kChunks, kCodes = kHeads * 4 * (Row::kCodes / 64);
  static constexpr int kStep = kCount * 32;                                // bytes
  static constexpr int kRows = kCount / 4 < kHeads ? kCount / 4 : kHeads;  // heads side by side
  static constexpr int kSteps = kHeads / kRows;             // until all heads have had their turn,
  static constexpr int kColumns = kCount / 4 / kRows * 64;  // and the next dims come
  static_assert(kRows % 8 == 0, "the swizzle depends on the thread alone");

  const Params& p;
  Shared<Row, kHeads>& shared;
  int thread;

  // When nobody looks at q of the item before any more.
  __device__ void fetch(const Work& work) const {
    if (work.begin < work.end) copy(work);
  }

  // Nor at Item number n % 2. What was written is there for products after the next barrier.
  __device__ void finish(const Work& work, int n) const {
    Item<kHeads>& item = shared.items[n % 2];
    if (thread < kHeads) {
      item.reference[thread] = 0.f;
      item.largest[thread] = ordered_int(-INFINITY);
    }
    if (thread == 0) item.work = work;
    if (work.begin < work.end && !decode()) item.too_large = work.item + 1;
    ptx::fence_proxy_async();
  }

 private:
  // Where the lower half of this thread's first piece is, and from any lower half to its upper one.
  __device__ uint8_t* first_piece() const {
    const int row = thread / 4;
    return shared.q[0] + row * 128 + 16 * (thread % 4 * 2 ^ row % 8);
  }
  __device__ uint8_t* upper(uint8_t* lower) const {
    return lower + ((thread / 4 & 1) != 0 ? -16 : 16);
  }

  __device__ void copy(const Work& work) const {
    const int head = thread / 4 % kRows, last = p.heads - work.first_head - 1;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, 0) +
                    thread / (4 * kRows) * 64 + thread % 4 * 16;
    uint8_t* lower = first_piece();
    uint8_t* const upper_half = upper(lower);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // Behind the last head it is repeated: nobody looks at what comes of it.
      const bf16* from = q + min(head + step * kRows, last) * p.q_at.head;
#pragma unroll
      for (int i = step; i * kCount < kAll; i += kSteps) {
        if ((i + 1) * kCount > kAll && thread + i * kCount >= kAll) break;
        ptx::cp_async<16>(lower + i * kStep, from + i / kSteps * kColumns);
        ptx::cp_async<16>(upper_half + i * kStep, from + i / kSteps * kColumns + 8);
      }
    }
  }

  // In place, by the threads that fetched it: to f16 what meets codes, in the order that
  // KeyFragments wants. False if something is too large. Some pieces at a time, so that the way to
  // shared memory is waited for once.
  __device__ bool decode() const {
    // The gathering warpgroup has registers for two, and not in every loop.
    constexpr int kAtOnce = kCodes > 2 * kCount ? 2 : 1;
    constexpr bool kWhole = kCodes % (kAtOnce * kCount) == 0;
    ptx::cp_async_wait_all();
    Range range;
    uint8_t* lower = first_piece();
    uint8_t* upper_half = upper(lower);
#pragma unroll 1
    for (int first = 0; first < kCodes; first += kAtOnce * kCount) {
      uint4 a[kAtOnce], b[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (!kWhole && first + i * kCount + thread >= kCodes) break;
        a[i] = *reinterpret_cast<const uint4*>(lower + i * kStep);
        b[i] = *reinterpret_cast<const uint4*>(upper_half + i * kStep);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (!kWhole && first + i * kCount + thread >= kCodes) break;
        const uint32_t pairs[8] = {range.f16(a[i].x), range.f16(a[i].y), range.f16(a[i].z),
                                   range.f16(a[i].w), range.f16(b[i].x), range.f16(b[i].y),
                                   range.f16(b[i].z), range.f16(b[i].w)};
        *reinterpret_cast<uint4*>(lower + i * kStep) = {pairs[0], pairs[2], pairs[4], pairs[6]};
        *reinterpret_cast<uint4*>(upper_half + i * kStep) = {pairs[1], pairs[3], pairs[5],
                                                             pairs[7]};
      }
      lower += kAtOnce * kStep, upper_half += kAtOnce * kStep;
    }
    return range.fits();
  }

  // Of pairs of bf16, and what they are as f16. Both ends: a magnitude is one more instruction. NaN
  // does not count: it is NaN in f16 too.
  struct Range {
    __nv_bfloat162 largest = __float2bfloat162_rn(0.f), least = largest;

    __device__ uint32_t f16(uint32_t pair) {
      largest = __hmax2(largest, ptx::as_bf162(pair));
      least = __hmin2(least, ptx::as_bf162(pair));
      return f16_of_bf16(pair);
    }
    __device__ bool fits() const { return fits_f16(largest) && fits_f16(__habs2(least)); }
  };
};

}  // namespace dsv4::sm90_fp8
