// Rows of a block's lists -> the ring of raw rows. A batch is what the consumers use in one
// iteration: one or two tiles, two slots each. A row is one bulk copy, asked for by one lane, which
// also brings its scales to f16.

#pragma once

#include <type_traits>

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cache_hint.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"

namespace dsv4::sm90_fp8 {

constexpr int kBatchSlots = 2 * kTile / kSlotRows;
constexpr int kBatchRows = kBatchSlots * kSlotRows;

// Where in its items a block is. An item without rows has one batch, of no slots.
template <int kHeads>
struct Cursor {
  Work work;
  int position;  // of the next batch's first row
  // Ids at list positions, those of the window and those behind it.
  const int32_t *window_ids, *compressed_ids;

  __device__ Cursor(const Params& p, const Work& first) : work(first) { begin(p); }
  __device__ bool done(const Params& p) const { return work.item >= num_items(p); }
  __device__ int slots() const { return min(kBatchSlots, 2 * tiles_of(work.end - position)); }
  __device__ bool begins() const { return position == work.begin; }
  __device__ void advance(const Params& p) {
    position += 2 * kTile;
    if (position >= work.end) seek(p, next_item(p, work.item));
  }
  __device__ int id(int at) const {
    const bool is_window = at < work.window;
    const int32_t* ids = is_window ? window_ids : compressed_ids;
    int id = -1;
    if (at < (is_window ? min(work.listed, work.end) : work.end)) id = ids[at];
    return id;
  }

 private:
  __device__ void seek(const Params& p, int item) {
    work.item = item;
    if (item >= num_items(p)) return;
    work = find_work<kHeads>(p, item);
    begin(p);
  }
  __device__ void begin(const Params& p) {
    position = work.begin;
    window_ids = first_id(p.window.list, work);
    compressed_ids = first_id(p.compressed.list, work) - work.window;
  }
};

// Where a batch begins in the ring.
template <int kSlots>
struct RingPlace {
  int first = 0, turn = 1;  // turn: the phase in which its slots are empty

  __device__ bool wraps(int s) const { return first + s >= kSlots; }
  __device__ int slot(int s) const { return first + s - (wraps(s) ? kSlots : 0); }
  __device__ int phase(int s) const { return turn ^ (wraps(s) ? 1 : 0); }
  __device__ void advance(int slots) {
    turn ^= wraps(slots) ? 1 : 0;
    first = slot(slots);
  }
};

// The gathering warpgroup fills the slots of a batch: a lane has a row, a warp kRows rows of each
// of its slots. With few, all warps work at a slot, which is complete soon; with 32, each waits for
// one slot only.
template <class Row, int kHeads, int kRows>
struct Fill {
  using S = Shared<Row, kHeads>;
  using Place = RingPlace<S::kSlots>;
  using Scales = std::conditional_t<Row::kFloatScales, uint4, uint2>;  // of a row, as stored
  static constexpr int kSlots = kWarp / kRows;  // of a warp: all of a batch, or one
  static_assert(kBatchRows == kGroupThreads && (kSlots == kBatchSlots || kSlots == 1));

  struct Batch {
    int slots;
    int id;  // of this lane's row
    bool is_window;
  };

  const Params& p;
  S& shared;
  const int mine, row;  // slot of the batch and row of this lane

  // thread: of the warpgroup
  __device__ Fill(const Params& params, S& memory, int thread)
      : p(params),
        shared(memory),
        mine(kSlots == 1 ? thread / kWarp : thread % kWarp / kRows),
        row(kSlots == 1 ? thread % kWarp : thread / kWarp * kRows + thread % kRows) {}

  // Asks for the ids of the next batch.
  __device__ Batch read(const Cursor<kHeads>& at) const {
    const int position = at.position + mine * kSlotRows + row;
    return {.slots = at.slots(), .id = at.id(position), .is_window = position < at.work.window};
  }

  // Slots from `free` on may be in use; between() stands in front of the wait for them. Scales are
  // asked for in front of the copies and looked at behind the first of them: what they cost is the
  // latency of memory once. Who waits for a slot behind those completes it as soon as its rows are
  // there.
  template <class Between>
  __device__ void copy(const Batch& batch, const Place& place, int free,
                       const Between& between) const {
    const PagedList& list = batch.is_window ? p.window : p.compressed;
    const bool valid = mine < batch.slots && is_row(list, batch.id);
    const RowPlace row_at = find_row<Row>(list, batch.id);
    const Scales scales = load_scales(valid ? row_at.scales : anything());
    const uint8_t* from = valid ? row_at.entry : nullptr;
    const int first = kSlots == 1 ? mine : 0, early = kSlots == 1 ? 1 : free;
#pragma unroll 1  // what a pair of tiles runs through hardly fits the instruction cache
    for (int i = 0; i < early; ++i) copy_rows(batch, first + i, place, from);
    if (mine < min(first + early, batch.slots)) finish_row(place.slot(mine), valid, scales);
    between();
#pragma unroll 1
    for (int i = early; i < kSlots; ++i) {
      copy_rows(batch, first + i, place, from);
      if (mine == first + i && mine < batch.slots) finish_row(place.slot(mine), valid, scales);
    }
  }

 private:
  // An address that exists, for what is not looked at.
  __device__ const uint8_t* anything() const {
    return static_cast<const uint8_t*>(p.q);
  }

  __device__ Scales load_scales(const uint8_t* from) const {
    Scales scales;
    if (p.rows_once) {
      ptx::ld_global_evict_first(from, scales);
    } else {
      scales = *reinterpret_cast<const Scales*>(from);
    }
    return scales;
  }

  // This warp's rows of slot s; a row that does not exist is zeros, for weights of 0 to meet. The
  // next bulk copy overwrites those: the fence between is the consumers', in weigh(). Copies may
  // begin before somebody expects them, who has not arrived yet.
  __device__ void copy_rows(const Batch& batch, int s, const Place& place,
                            const uint8_t* from) const {
    if (s >= batch.slots) return;
    const int slot = place.slot(s);
    shared.empty[slot].wait(place.phase(s));
    ptx::Mbarrier& full = shared.full[slot];
    const unsigned rows = __ballot_sync(~0u, s == mine && from != nullptr);
    if (s != mine) return;
    if (row % kRows == 0) full.expect_tx(static_cast<uint32_t>(__popc(rows) * Row::kRowBytes));
    const uint32_t to = ptx::smem_address(shared.ring[slot]) + row * Row::kStride;
    if (from == nullptr) {
#pragma unroll 4
      for (int at = 0; at < Row::kRowBytes; at += 16) ptx::st_shared_v4_zero(to + at);
    } else {
      p.rows_once ? ptx::cp_async_bulk_evict_first(to, from, Row::kRowBytes, full)
                  : ptx::cp_async_bulk(to, from, Row::kRowBytes, full);
    }
  }

  // What is not copied of this lane's row: its scales and whether there is one.
  __device__ void finish_row(int slot, bool valid, const Scales& scales) const {
    const bool fits = store_scales(slot, valid ? scales : Scales{});
    shared.rows[slot][row] = !valid ? kNoKey : fits ? kKey : kKeyTooLarge;
    shared.full[slot].arrive();
  }

  // Scales to f16, exactly from 2^-24 on if they are powers of two; false for what is too large.
  __device__ bool store_scales(int slot, const Scales& scales) const {
    __half* to = &shared.value_scales[slot][0][scale_place(row)];
    __half2 pairs[S::kGroups / 2];  // of neighbouring groups
    bool fits = true;               // NaN does not
    if constexpr (Row::kFloatScales) {
      const uint32_t all[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
      for (int i = 0; i < S::kGroups / 2; ++i) {
        const float low = __uint_as_float(all[2 * i]), high = __uint_as_float(all[2 * i + 1]);
        pairs[i] = __floats2half2_rn(low, high);
        fits &= fabsf(low) <= 128.f && fabsf(high) <= 128.f;
      }
    } else {  // UE8M0 is the exponent of an f32; behind the last one is padding, anything
      const uint32_t all[2] = {scales.x, scales.y & 0xffffff};
#pragma unroll
      for (int i = 0; i < S::kGroups / 2; ++i) {
        const uint32_t codes = all[i / 2] >> (i % 2 * 16);
        const float low = __uint_as_float((codes & 0xff) << 23);
        const float high = __uint_as_float((codes & 0xff00) << 15);
        pairs[i] = __floats2half2_rn(low, high);
        fits &= fmaxf(low, high) <= 128.f;
      }
    }
#pragma unroll
    for (int i = 0; i < S::kGroups / 2; ++i) {
      to[2 * i * kSlotRows] = __low2half(pairs[i]);
      to[(2 * i + 1) * kSlotRows] = __high2half(pairs[i]);
    }
    if constexpr (!Row::kFloatScales) {
      uint8_t* of_key = shared.ring[slot] + row * Row::kStride + Row::kScalesAt;
      *reinterpret_cast<uint4*>(of_key) = {bits_of(pairs[0]), bits_of(pairs[1]), bits_of(pairs[2]),
                                           bits_of(pairs[3])};
    }
    return fits;
  }
};

}  // namespace dsv4::sm90_fp8
