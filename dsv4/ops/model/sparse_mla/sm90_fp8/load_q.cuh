// Prepares a work tile for its first QK^T: its description, q in shared memory, a fresh softmax
// state. The consumer warpgroups prepare a CTA's first tile, while its first KV entries are in
// flight; the producer warpgroup prepares later ones, during the last PV of the previous tile.

#pragma once

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/operands.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/work.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

// Run by kCount threads; `thread` is the index among them. q is stored in tiles of 64 dims, each
// [heads, 4] pieces of 16 dims. In this order a thread copies every kCount-th piece, so that its
// pieces are a constant offset apart and have the same column (of 4) in each row of a tile.
template <class KvFormat, int kHeads, int kCount>
struct QLoader {
  using S = Smem<KvFormat, kHeads>;
  static constexpr int kAll = kHeads * 4 * S::kQTiles,
                       kCodes = kHeads * 4 * (KvFormat::kCodes / 64);
  static constexpr int kStep = kCount * 32;                                // bytes between pieces
  static constexpr int kRows = kCount / 4 < kHeads ? kCount / 4 : kHeads;  // heads per step
  static constexpr int kSteps = kHeads / kRows;             // steps to cover all heads,
  static constexpr int kColumns = kCount / 4 / kRows * 64;  // and dims to advance after them
  static_assert(kRows % 8 == 0, "the swizzle depends on the thread alone");

  const Params& p;
  Smem<KvFormat, kHeads>& smem;
  int thread;

  // Starts the copies. All QK^T of the previous tile must be complete.
  __device__ void fetch(const WorkTile& work) const {
    if (work.begin < work.end) copy(work);
  }

  // Waits for the copies, converts q and initializes TileState n % 2, whose previous tile must be
  // finished. The consumers may use q and the state after the next barrier.
  __device__ void finish(const WorkTile& work, int n) const {
    TileState<kHeads>& tile = smem.tiles[n % 2];
    if (thread < kHeads) {
      tile.row_max[thread] = 0.f;
      tile.seen_max[thread] = ordered_int(-INFINITY);
    }
    if (thread == 0) tile.work = work;
    if (work.begin < work.end && !convert()) tile.overflow = work.index + 1;
    ptx::fence_proxy_async();
  }

 private:
  // Addresses of dims 0 .. 7 of this thread's first piece, and of dims 8 .. 15 given 0 .. 7.
  __device__ uint8_t* first_piece() const {
    const int row = thread / 4;
    return smem.q[0] + row * 128 + 16 * (thread % 4 * 2 ^ row % 8);
  }
  __device__ uint8_t* upper(uint8_t* lower) const {
    return lower + ((thread / 4 & 1) != 0 ? -16 : 16);
  }

  __device__ void copy(const WorkTile& work) const {
    const int head = thread / 4 % kRows, last = p.heads - work.first_head - 1;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, 0) +
                    thread / (4 * kRows) * 64 + thread % 4 * 16;
    uint8_t* lower = first_piece();
    uint8_t* const upper_half = upper(lower);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      // Heads past the end repeat the last one; their results are not stored.
      const bf16* from = q + min(head + step * kRows, last) * p.q_at.head;
#pragma unroll
      for (int i = step; i * kCount < kAll; i += kSteps) {
        if ((i + 1) * kCount > kAll && thread + i * kCount >= kAll) break;
        ptx::cp_async<16>(lower + i * kStep, from + i / kSteps * kColumns);
        ptx::cp_async<16>(upper_half + i * kStep, from + i / kSteps * kColumns + 8);
      }
    }
  }

  // Each thread converts in place what it has copied: dims that are multiplied with codes become
  // f16, in the order that KeyOperand uses. False if a value does not fit f16. Loads several pieces
  // before it converts them, so that the latency of shared memory is paid once.
  __device__ bool convert() const {
    // Two where a thread has more than two pieces; the producer has no registers for more.
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

  // Converts pairs of bf16 to f16 and tracks the largest and the least value: tracking magnitudes
  // would take one more instruction. NaN is not tracked: it stays NaN in f16.
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

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
