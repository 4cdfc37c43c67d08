// The gathering warpgroup: list ids -> raw rows in the ring, and everything that an item begins
// with (but the block's first).
//
// Ids are read one batch before their rows are copied. A batch is what the consumers use in one
// iteration: one or two tiles, two slots each. Four lanes share a row. Of a new item's rows those
// go first that find a free slot; then q, as soon as the item before has no use for its own; then
// the rows that wait for the last values of the item before.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_queries.cuh"

namespace dsv4::sm90_fp8 {

constexpr int kBatchSlots = 2 * kTile / kSlotRows;

// Where in its items a block is. An item without rows has one batch, of no slots.
template <int kHeads>
struct Cursor {
  Work work;
  int position;  // of the next batch's first row

  __device__ explicit Cursor(const Params& p) { seek(p, first_item(p)); }
  __device__ bool done(const Params& p) const { return work.item >= num_items(p); }
  __device__ int slots() const { return min(kBatchSlots, 2 * tiles_of(work.end - position)); }
  __device__ void advance(const Params& p) {
    position += 2 * kTile;
    if (position >= work.end) seek(p, next_item(p, work.item));
  }

 private:
  __device__ void seek(const Params& p, int item) {
    work.item = item;
    if (item < num_items(p)) work = find_work<kHeads>(p, item);
    position = work.begin;
  }
};

template <class Row, int kHeads>
struct Gather {
  using S = Shared<Row, kHeads>;
  static_assert(S::kSlots >= kBatchSlots, "a batch waits for slots of earlier batches only");
  static constexpr int kArrivals = 2 * kGroupThreads;  // at Shared::full
  // Slots that are free although the batch before is still in use.
  static constexpr int kFreeSlots =
      S::kSlots < 2 * kBatchSlots ? S::kSlots - kBatchSlots : kBatchSlots;

  // This lane's row of every slot of a batch.
  struct Batch {
    int item = 0;  // that begins with this batch; -1: none
    int slots = 0;
    int window;  // the first so many rows are of the window
    int ids[kBatchSlots];
  };

  const Params& p;
  S& shared;
  const int row = static_cast<int>(threadIdx.x) % kGroupThreads / 4;
  const int part = static_cast<int>(threadIdx.x) % 4;
  int slots_used = 0, items_opened = 0;

  __device__ Gather(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void run() {
    Cursor<kHeads> cursor(p);
    Batch now, next;
    for (bool more = read_ids(cursor, now); more; now = next) {
      more = read_ids(cursor, next);
      copy(now);
    }
  }

 private:
  // False: there is no batch left.
  __device__ bool read_ids(Cursor<kHeads>& at, Batch& batch) const {
    if (at.done(p)) return false;
    const bool begins = at.position == at.work.begin;
    batch.item = begins ? at.work.item : -1;
    batch.slots = at.slots();
    batch.window = at.work.window - at.position;
    if (begins && at.work.item != first_item(p)) prefetch_queries(at.work);
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) {
      batch.ids[s] = listed_id(p, at.work, at.position + s * kSlotRows + row);
    }
    at.advance(p);
    return true;
  }

  __device__ const PagedList& list_of(const Batch& batch, int s) const {
    return s * kSlotRows + row < batch.window ? p.window : p.compressed;
  }

  // Scales are read while rows are on their way, so they cost no time of their own.
  __device__ void copy(const Batch& batch) {
    uint32_t scales[kBatchSlots];
    unsigned present = 0;  // bit s: there is one
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) {
      scales[s] = 0;
      const PagedList& rows = list_of(batch, s);
      if (s >= batch.slots || !is_row(rows, batch.ids[s])) continue;
      present |= 1u << s;
      scales[s] = read_scales(find_row<Row>(rows, batch.ids[s]).scales);
    }
    copy_rows<0, kFreeSlots>(batch, present);
    if (batch.item >= 0) open(batch.item);
    copy_rows<kFreeSlots, kBatchSlots>(batch, present);
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) {
      if (s >= batch.slots) break;
      finish_row((slots_used + s) % S::kSlots, (present >> s & 1) != 0, scales[s]);
    }
    slots_used += batch.slots;
  }

  template <int kFirst, int kEnd>
  __device__ void copy_rows(const Batch& batch, unsigned present) const {
#pragma unroll
    for (int s = kFirst; s < kEnd; ++s) {
      if (s >= batch.slots) break;
      const int n = slots_used + s, slot = n % S::kSlots;
      const bool valid = (present >> s & 1) != 0;
      const auto* from = static_cast<const uint8_t*>(p.q);  // any address that exists
      if (valid) from = find_row<Row>(list_of(batch, s), batch.ids[s]).entry;
      shared.empty[slot].wait((n / S::kSlots + 1) % 2);
      copy_row(slot, from, valid);
    }
  }

  __device__ void open(int item) {
    if (items_opened > 0) {  // the first is the consumers'
      shared.item_empty.wait((items_opened + 1) % 2);
      const int thread = static_cast<int>(threadIdx.x) - kConsumers;
      Queries<Row, kHeads, kGroupThreads>{p, shared, thread}.open(find_work<kHeads>(p, item),
                                                                  items_opened);
      shared.item_full.arrive();
    }
    ++items_opened;
  }

  // The codes of groups 2 part and 2 part + 1 (V4), or the scale of group part (V3.2).
  __device__ uint32_t read_scales(const uint8_t* scales) const {
    if constexpr (Row::kFloatScales) return __ldg(reinterpret_cast<const uint32_t*>(scales) + part);
    return __ldg(reinterpret_cast<const uint16_t*>(scales) + part);
  }

  __device__ void copy_row(int slot, const uint8_t* from, bool valid) const {
    const uint32_t to = ptx::shared_address(shared.ring[slot]) + row * Row::kRowBytes;
#pragma unroll
    for (int i = 0; i < Row::kRowBytes / 64; ++i) {
      const int piece = 4 * i + part;
      ptx::cp_async_or_zero(to + 16 * (piece ^ Row::swizzle(row)),
                            from + 16 * Row::source_piece(piece), valid);
    }
    shared.full[slot].arrive_after_copies();
  }

  // What is not copied of a row: its scales and whether there is one.
  __device__ void finish_row(int slot, bool valid, uint32_t scales) const {
    const bool fits = store_scales(slot, scales);
    const unsigned all_fit = __ballot_sync(~0u, fits) >> (threadIdx.x % kWarp / 4 * 4) & 0xf;
    if (part == 0) shared.rows[slot][row] = !valid ? kNoKey : all_fit == 0xf ? kKey : kKeyTooLarge;
    shared.full[slot].arrive();
  }

  // Scales to f16: powers of two exactly, from 2^-24 on; false for what is too large.
  __device__ bool store_scales(int slot, uint32_t scales) const {
    __half* to = &shared.scales[slot][0][scale_place(row)];
    if constexpr (Row::kFloatScales) {
      const float scale = __uint_as_float(scales);
      to[part * kSlotRows] = __float2half_rn(scale);
      return fabsf(scale) <= 128.f;
    } else {
      bool fits = true;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int code = scales >> 8 * i & 0xff, group = 2 * part + i;
        if (group >= S::kGroups) break;
        fits &= code <= 127 + 7;
        to[group * kSlotRows] =
            __ushort_as_half(static_cast<uint16_t>(code > 112   ? (code - 112) << 10
                                                   : code > 102 ? 1 << (code - 103)
                                                                : 0));
      }
      return fits;
    }
  }

  __device__ void prefetch_queries(const Work& work) const {
    const int head = static_cast<int>(threadIdx.x) - kConsumers;
    if (head >= kHeads || work.first_head + head >= p.heads) return;
    constexpr int kBytes = (Row::kCodes + Row::kRope) * 2;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    ptx::prefetch_l2(q, kBytes);
  }
};

}  // namespace dsv4::sm90_fp8
