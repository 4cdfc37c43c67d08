// What an item needs before its first product: its description, its q in shared memory, a fresh
// reference. The computing warpgroups do it for a block's first item, while the first rows are on
// their way; the gathering one for the others, while the item before is at its last values.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"

namespace dsv4::sm90_fp8 {

// kCount threads, of which this is number `thread`, each with 16 dims of a head at a time.
template <class Row, int kHeads, int kCount>
struct Queries {
  static constexpr int kPieces = (Row::kCodes + Row::kRope) / 16, kAll = kHeads * kPieces;

  const Params& p;
  Shared<Row, kHeads>& shared;
  int thread;

  // When nobody looks at q of the item before any more, nor at Item number n % 2. What was written
  // is there for products after the next barrier.
  __device__ void open(const Work& work, int n) const {
    Item<kHeads>& item = shared.items[n % 2];
    if (work.begin < work.end) fetch(work);
    if (thread < kHeads) {
      item.reference[thread] = 0.f;
      item.largest[thread] = ordered_int(-INFINITY);
    }
    if (thread == 0) item.work = work;
    if (work.begin < work.end && !decode()) item.too_large = work.item + 1;
    ptx::fence_proxy_async();
  }

 private:
  // Calls visit(head, piece, low, high) with the places of this thread's 16-byte halves.
  template <class Visit>
  __device__ void for_each_piece(const Visit& visit) const {
#pragma unroll 2
    for (int at = thread; at < kAll; at += kCount) {
      const int head = at / kPieces, piece = at % kPieces, first = piece % 4 * 2;
      uint8_t* row = shared.q[piece / 4] + head * 128;
      visit(head, piece, row + 16 * (first ^ head % 8), row + 16 * ((first + 1) ^ head % 8));
    }
  }

  __device__ void fetch(const Work& work) const {
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, 0);
    const int last = p.heads - work.first_head - 1;  // repeated: nobody looks at what comes of it
    for_each_piece([&](int head, int piece, uint8_t* low, uint8_t* high) {
      const bf16* from = q + min(head, last) * p.q_at.head + 16 * piece;
      ptx::cp_async<16>(low, from);
      ptx::cp_async<16>(high, from + 8);
    });
  }

  // In place, by the threads that fetched it: to f16 what meets codes, in the order that
  // KeyFragments wants. False if something is too large.
  __device__ bool decode() const {
    ptx::cp_async_wait();
    bool fits = true;
    for_each_piece([&](int, int piece, uint8_t* low, uint8_t* high) {
      if (16 * piece >= Row::kCodes) return;
      const uint4 a = *reinterpret_cast<uint4*>(low), b = *reinterpret_cast<uint4*>(high);
      uint32_t pairs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      __nv_bfloat162 largest = __habs2(ptx::as_bf162(pairs[0]));
      for (uint32_t& pair : pairs) {
        largest = __hmax2(largest, __habs2(ptx::as_bf162(pair)));
        pair = pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
      }
      fits &= fits_f16(largest);
      *reinterpret_cast<uint4*>(low) = {pairs[0], pairs[2], pairs[4], pairs[6]};
      *reinterpret_cast<uint4*>(high) = {pairs[1], pairs[3], pairs[5], pairs[7]};
    });
    return fits;
  }
};

}  // namespace dsv4::sm90_fp8
