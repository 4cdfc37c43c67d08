// The gathering warpgroup: list ids -> raw rows in the ring.
//
// Ids are read two batches before their rows are copied. A batch is what the consumers use in one
// iteration: one or two tiles, two slots each. Four lanes share a row.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_work.cuh"

namespace dsv4::mla90 {

constexpr int kBatchSlots = 2 * kTile / kSlotRows;

// Where in its items a block is.
template <int kHeads>
struct Cursor {
  Work work;
  int position;  // of the next batch's first row

  __device__ explicit Cursor(const Params& p) { seek(p, static_cast<int>(blockIdx.x)); }
  __device__ bool done(const Params& p) const { return work.item >= num_items(p); }
  __device__ int slots() const { return min(kBatchSlots, 2 * tiles_of(work.end - position)); }
  __device__ void advance(const Params& p) {
    position += 2 * kTile;
    if (position >= work.end) seek(p, work.item + static_cast<int>(gridDim.x));
  }

 private:
  // The first item from `item` on that has rows.
  __device__ void seek(const Params& p, int item) {
    for (; item < num_items(p); item += static_cast<int>(gridDim.x)) {
      work = find_work<kHeads>(p, item);
      position = work.begin;
      if (work.begin < work.end) return;
    }
    work.item = item;
  }
};

template <class Row, int kHeads>
struct Gather {
  using S = Shared<Row, kHeads>;
  static constexpr int kArrivals = kGroupThreads + kSlotRows;  // at Shared::full

  // This lane's row of every slot of a batch.
  struct Batch {
    int ids[kBatchSlots];
    int slots = 0;  // 0: there is none
  };

  const Params& p;
  S& shared;
  const int row = static_cast<int>(threadIdx.x) % kGroupThreads / 4;
  const int part = static_cast<int>(threadIdx.x) % 4;
  int slots_used = 0;

  __device__ Gather(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void run() {
    Cursor<kHeads> cursor(p);
    Batch a, b, c;
    read_ids(cursor, a);
    read_ids(cursor, b);
    // Three batches that change roles: a copy of ids would wait for their arrival.
    for (;;) {
      if (!step(cursor, a, c)) return;
      if (!step(cursor, b, a)) return;
      if (!step(cursor, c, b)) return;
    }
  }

 private:
  __device__ bool step(Cursor<kHeads>& cursor, const Batch& now, Batch& later) {
    if (now.slots == 0) return false;
    read_ids(cursor, later);
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) {
      if (s >= now.slots) break;
      const int slot = slots_used % S::kSlots;
      shared.empty[slot].wait((slots_used / S::kSlots + 1) % 2);
      copy(slot, now.ids[s]);
      ++slots_used;
    }
    return true;
  }

  __device__ void read_ids(Cursor<kHeads>& at, Batch& batch) const {
    batch.slots = 0;
    if (at.done(p)) return;
    batch.slots = at.slots();
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) {
      batch.ids[s] = listed_row(p, at.work, at.position + s * kSlotRows + row);
    }
    at.advance(p);
  }

  __device__ void copy(int slot, int id) const {
    const bool valid = id != kNoRow;
    const auto* unread = static_cast<const uint8_t*>(p.q);  // any address that exists
    RowPlace from{unread, unread};
    if (valid) from = find_row<Row>(p, id);
    const uint32_t to = ptx::shared_address(shared.ring[slot]) + row * Row::kRowBytes;
#pragma unroll
    for (int i = 0; i < Row::kRowBytes / 64; ++i) {
      const int piece = 4 * i + part;
      ptx::cp_async_or_zero<16>(to + 16 * (piece ^ Row::swizzle(row)),
                                from.entry + 16 * Row::source_piece(piece), valid);
    }
    if (part == 0) {
      ptx::cp_async_or_zero<Row::kScaleBytes>(
          ptx::shared_address(shared.raw_scales[slot]) + row * Row::kScaleBytes, from.scales, valid);
      shared.valid[slot][row] = valid ? 1 : 0;
      shared.full[slot].arrive();
    }
    shared.full[slot].arrive_after_copies();
  }
};

}  // namespace dsv4::mla90
