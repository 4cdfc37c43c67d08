// The gathering warpgroup: the block's lists, batch by batch, into the ring, and everything that an
// item begins with (but the block's first).
//
// Ids are read one batch before their rows are copied. Of a new item's rows those go first that
// find a free slot; then q, as soon as the item before has no use for its own, or for the parts in
// its place; then the rows that wait for the last values of the item before.
//
// Its instructions take issue slots from those that compute: what can be a constant offset is one.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_fill.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_queries.cuh"

namespace dsv4::sm90_fp8 {

template <class Row, int kHeads>
struct Gather {
  using S = Shared<Row, kHeads>;
  static_assert(S::kSlots >= kBatchSlots, "a batch waits for slots of earlier batches only");
  // Slots that are free although the batch before is still in use.
  static constexpr int kFreeSlots =
      S::kSlots < 2 * kBatchSlots ? S::kSlots - kBatchSlots : kBatchSlots;
  // In a small ring slots are waited for one by one.
  static constexpr int kRows = kFreeSlots < kBatchSlots ? kSlotRows / 4 : kSlotRows;
  using GroupFill = Fill<Row, kHeads, kRows>;

  struct Batch {
    int item;  // that begins with this batch; -1: none
    typename GroupFill::Batch rows;
  };

  const Params& p;
  S& shared;
  const GroupFill fill{p, shared, thread()};
  RingPlace<S::kSlots> place;  // of the next batch
  int items_opened = 0;
  int turn_of_parts = 0;  // Shared::merged

  __device__ Gather(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void run(const Work& first) {
    Cursor<kHeads> cursor(p, first);
    Batch now, next;
    for (bool more = read(cursor, now); more; now = next) {
      more = read(cursor, next);
      fill.template copy<kFreeSlots>(now.rows, place, [&] {
        if (now.item >= 0) open(now.item);
      });
      place.advance(now.rows.slots);
    }
    leave_queries();
  }

 private:
  static __device__ int thread() { return this_thread() % kGroupThreads; }

  // False: there is no batch left.
  __device__ bool read(Cursor<kHeads>& at, Batch& batch) const {
    if (at.done(p)) return false;
    const bool begins = at.begins();
    batch = {.item = begins ? at.work.item : -1, .rows = fill.read(at)};
    if (begins && at.work.item != first_item(p))
      prefetch_queries(find_work<kHeads>(p, at.work.item));
    at.advance(p);
    return true;
  }

  // Nobody looks at q of the item opened last any more: parts may take its place. Returns how many
  // blocks have it.
  __device__ int leave_queries() const {
    const int n = items_opened - 1;
    shared.item_empty.wait(n % 2);
    const int parts = shared.items[n % 2].work.parts;
    if (parts > 1 && thread() < p.chunks)
      shared.room.arrive_in_cluster(static_cast<uint32_t>(thread()));
    return parts;
  }

  __device__ void open(int item) {
    if (items_opened == 0) {  // the first is the consumers'
      // The other blocks have begun: leave_queries() may tell them something. Here, where nobody is
      // waited for: under racecheck no thread of a block passes before all have come.
      if (p.chunks > 1) ptx::cluster_wait();
    } else {
      if (leave_queries() > 1) {
        shared.merged.wait(turn_of_parts);
        turn_of_parts ^= 1;
      }
      const Work work = find_work<kHeads>(p, item);
      const Queries<Row, kHeads, kGroupThreads> queries{p, shared, thread()};
      queries.fetch(work);
      queries.finish(work, items_opened);
      shared.item_full.arrive();
    }
    ++items_opened;
  }

  __device__ void prefetch_queries(const Work& work) const {
    const int head = thread();
    if (head >= kHeads || work.first_head + head >= p.heads) return;
    constexpr int kBytes = (Row::kCodes + Row::kRope) * 2;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    ptx::prefetch_l2(q, kBytes);
  }
};

}  // namespace dsv4::sm90_fp8
