// The gathering warpgroup: list ids -> raw rows in the ring, and everything that an item begins
// with (but the block's first).
//
// Ids are read one batch before their rows are copied. A batch is what the consumers use in one
// iteration: one or two tiles, two slots each. A row is one bulk copy; four lanes share its id and
// its scales. Of a new item's rows those go first that find a free slot; then q, as soon as the
// item before has no use for its own; then the rows that wait for the last values of the item
// before.
//
// Its instructions take issue slots from those that compute: what can be a constant offset is one.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_queries.cuh"

namespace dsv4::sm90_fp8 {

constexpr int kBatchSlots = 2 * kTile / kSlotRows;

// Where in its items a block is. An item without rows has one batch, of no slots.
template <int kHeads>
struct Cursor {
  Work work;
  int position;  // of the next batch's first row
  // Ids at list positions, those of the window and those behind it.
  const int32_t *window_ids, *compressed_ids;

  __device__ explicit Cursor(const Params& p) { seek(p, first_item(p)); }
  __device__ bool done(const Params& p) const { return work.item >= num_items(p); }
  __device__ int slots() const { return min(kBatchSlots, 2 * tiles_of(work.end - position)); }
  __device__ void advance(const Params& p) {
    position += 2 * kTile;
    if (position >= work.end) seek(p, next_item(p, work.item));
  }
  __device__ int id(int at) const {
    const bool is_window = at < work.window;
    return at < (is_window ? min(work.listed, work.end) : work.end)
               ? (is_window ? window_ids : compressed_ids)[at]
               : -1;
  }

 private:
  __device__ void seek(const Params& p, int item) {
    work.item = item;
    if (item >= num_items(p)) return;
    work = find_work<kHeads>(p, item);
    position = work.begin;
    window_ids = first_id(p.window.list, work);
    compressed_ids = first_id(p.compressed.list, work) - work.window;
  }
};

template <class Row, int kHeads>
struct Gather {
  using S = Shared<Row, kHeads>;
  static_assert(S::kSlots >= kBatchSlots, "a batch waits for slots of earlier batches only");
  static constexpr int kArrivals = kGroupThreads;  // at Shared::full, beside the bytes of the rows
  // Slots that are free although the batch before is still in use.
  static constexpr int kFreeSlots =
      S::kSlots < 2 * kBatchSlots ? S::kSlots - kBatchSlots : kBatchSlots;

  // This lane's row of every slot of a batch.
  struct Batch {
    int item;  // that begins with this batch; -1: none
    int slots;
    int window;  // the first so many rows are of the window
    int ids[kBatchSlots];
  };

  const Params& p;
  S& shared;
  const int lane = this_thread() % kWarp, quarter = lane % 4;
  const int row = this_thread() % kGroupThreads / 4;
  int first_slot = 0, ring_turn = 1;  // of the batch; ring_turn: the phase in which slots are empty
  int items_opened = 0;

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
    if (begins && at.work.item != first_item(p))
      prefetch_queries(find_work<kHeads>(p, at.work.item));
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) batch.ids[s] = at.id(at.position + s * kSlotRows + row);
    at.advance(p);
    return true;
  }

  // Slot s of the batch in the ring.
  __device__ int slot(int s) const {
    return first_slot + s < S::kSlots ? first_slot + s : first_slot + s - S::kSlots;
  }
  __device__ void wait_empty(int s) const {
    shared.empty[slot(s)].wait(ring_turn ^ (first_slot + s < S::kSlots ? 0 : 1));
  }

  // Scales are asked for in front of the copies and looked at behind the first of them: what they
  // cost is the latency of memory once, not once a row. Hence no branch here, and no operation on
  // them. A slot behind kFreeSlots, which the consumers may be waiting for, is complete as soon as
  // its rows are there.
  __device__ void copy(const Batch& batch) {
    const uint8_t* rows[kBatchSlots];  // null: there is none
    uint32_t scales[kBatchSlots];
#pragma unroll
    for (int s = 0; s < kBatchSlots; ++s) {
      const PagedList& list = s * kSlotRows + row < batch.window ? p.window : p.compressed;
      const bool valid = s < batch.slots && is_row(list, batch.ids[s]);
      const RowPlace place = find_row<Row>(list, batch.ids[s]);
      rows[s] = valid ? place.entry : nullptr;
      scales[s] = read_scales(valid ? place.scales : anything());
    }
#pragma unroll
    for (int s = 0; s < kFreeSlots; ++s) copy_row(batch, s, rows[s]);
#pragma unroll
    for (int s = 0; s < kFreeSlots; ++s) finish_row(batch, s, rows[s] != nullptr, scales[s]);
    if (batch.item >= 0) open(batch.item);
#pragma unroll
    for (int s = kFreeSlots; s < kBatchSlots; ++s) {
      copy_row(batch, s, rows[s]);
      finish_row(batch, s, rows[s] != nullptr, scales[s]);
    }
    first_slot += batch.slots;
    if (first_slot >= S::kSlots) first_slot -= S::kSlots, ring_turn ^= 1;
  }

  // An address that exists, for what is not looked at.
  __device__ const uint8_t* anything() const {
    return static_cast<const uint8_t*>(p.q);
  }

  // Into slot s of the batch; a row that does not exist is zeros, for weights of 0 to meet. The
  // next bulk copy overwrites those: the fence between is the consumers', in weigh(). Copies may
  // begin before lane 0 expects them, since nobody here has arrived yet.
  __device__ void copy_row(const Batch& batch, int s, const uint8_t* from) const {
    if (s >= batch.slots) return;
    wait_empty(s);
    const uint32_t to = ptx::shared_address(shared.ring[slot(s)]) + row * Row::kStride;
    ptx::Mbarrier& full = shared.full[slot(s)];
    const unsigned rows = __ballot_sync(~0u, quarter == 0 && from != nullptr);
    if (lane == 0) full.expect(static_cast<uint32_t>(__popc(rows) * Row::kRowBytes));
    if (from == nullptr) {
      for (int at = 16 * quarter; at < Row::kRowBytes; at += 64) ptx::store_zeros(to + at);
    } else if (quarter == 0) {
      ptx::copy_bulk(to, from, Row::kRowBytes, full);
    }
  }

  __device__ void open(int item) {
    if (items_opened > 0) {  // the first is the consumers'
      shared.item_empty.wait((items_opened + 1) % 2);
      const int thread = this_thread() - kConsumers;
      Queries<Row, kHeads, kGroupThreads>{p, shared, thread}.open(find_work<kHeads>(p, item),
                                                                  items_opened);
      shared.item_full.arrive();
    }
    ++items_opened;
  }

  // The codes of groups 2 quarter and 2 quarter + 1 (V4), or the scale of group quarter (V3.2). Not
  // __ldg(): the kernel before may have written them while this one was already there.
  __device__ uint32_t read_scales(const uint8_t* scales) const {
    if constexpr (Row::kFloatScales) return reinterpret_cast<const uint32_t*>(scales)[quarter];
    return reinterpret_cast<const uint16_t*>(scales)[quarter];
  }

  // What is not copied of a row: its scales and whether there is one.
  __device__ void finish_row(const Batch& batch, int s, bool valid, uint32_t scales) const {
    if (s >= batch.slots) return;
    // Behind the last group a row has a byte of padding, which may be anything.
    const bool padded = !Row::kFloatScales && 2 * quarter + 1 == Row::kCodes / Row::kGroup;
    const bool fits = store_scales(slot(s), !valid ? 0 : padded ? scales & 0xff : scales);
    const unsigned all_fit = __ballot_sync(~0u, fits) >> (lane - quarter) & 0xf;
    if (quarter == 0)
      shared.rows[slot(s)][row] = !valid ? kNoKey : all_fit == 0xf ? kKey : kKeyTooLarge;
    shared.full[slot(s)].arrive();
  }

  // Scales to f16, exactly from 2^-24 on if they are powers of two; false for what is too large.
  __device__ bool store_scales(int slot, uint32_t scales) const {
    __half* to = &shared.scales[slot][0][scale_place(row)];
    if constexpr (Row::kFloatScales) {
      const float scale = __uint_as_float(scales);
      to[quarter * kSlotRows] = __float2half_rn(scale);
      return fabsf(scale) <= 128.f;
    } else {  // UE8M0 is the exponent of an f32
      const float low = __uint_as_float((scales & 0xff) << 23);
      const float high = __uint_as_float((scales & 0xff00) << 15);
      const __half2 pair = __floats2half2_rn(low, high);
      to[2 * quarter * kSlotRows] = __low2half(pair);
      to[(2 * quarter + 1) * kSlotRows] = __high2half(pair);
      return fmaxf(low, high) <= 128.f;
    }
  }

  __device__ void prefetch_queries(const Work& work) const {
    const int head = this_thread() - kConsumers;
    if (head >= kHeads || work.first_head + head >= p.heads) return;
    constexpr int kBytes = (Row::kCodes + Row::kRope) * 2;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    ptx::prefetch_l2(q, kBytes);
  }
};

}  // namespace dsv4::sm90_fp8
