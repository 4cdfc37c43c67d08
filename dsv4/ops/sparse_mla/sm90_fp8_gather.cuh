// The gathering warpgroup: the block's lists, batch by batch, into the ring, everything that an
// item begins with (but the block's first), and the weights of parts behind the last dots.
//
// Ids are read one batch before their rows are copied. Of a new item's rows those go first that
// find a free slot; then q, as soon as the item before has no use for its own; then the rows that
// wait for the last values of the item before.
//
// Its instructions take issue slots from those that compute: what can be a constant offset is one.

#pragma once

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_fill.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_queries.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_sums.cuh"

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
  static_assert(kRows < kSlotRows || kFreeSlots == kBatchSlots, "or its one slot may not be free");
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

  __device__ Gather(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void run(const Work& first) {
    Cursor<kHeads> cursor(p, first);
    Batch now, next;
    bool more = read(cursor, now);
    // The consumers have waited for this: behind 64 KB of q ids would be half a microsecond late.
    ptx::barrier_sync(kBarrierIds, kThreads);
    for (; more; now = next) {
      more = read(cursor, next);
      const int free = items_opened == 0 ? kBatchSlots : kFreeSlots;
      fill.copy(now.rows, place, free, [&] {
        if (now.item >= 0) open(now);
      });
      place.advance(now.rows.slots);
    }
    if (p.chunks > 1) weigh_parts();
  }

 private:
  static __device__ int thread() { return thread_index() % kGroupThreads; }

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

  // Nobody looks at q of the item opened last any more.
  __device__ void wait_for_last_dots() const { shared.item_empty.wait((items_opened - 1) % 2); }

  __device__ void open(const Batch& batch) {
    if (items_opened == 0) {  // the first is the consumers'
      // The other blocks have begun: weigh_parts() will tell them something. Here, where nobody is
      // waited for: under racecheck no thread of a block passes before all have come.
      if (p.chunks > 1) ptx::cluster_wait();
      // Nothing begins before the first tile is there. Where all blocks begin at once, rows behind
      // it would come before that of others. Not where a block has more items: no gain was
      // measured.
      const bool is_alone = next_item(p, batch.item) >= num_items(p);
      if (is_alone && batch.rows.slots > 0) {
        shared.full[0].wait(0), shared.full[1].wait(0);
        // Nobody so late that those slots have had two turns more.
        ptx::barrier_sync(kBarrierGather, kGroupThreads);
      }
    } else {
      wait_for_last_dots();
      const Work work = find_work<kHeads>(p, batch.item);
      const Queries<Row, kHeads, kGroupThreads> queries{p, shared, thread()};
      queries.fetch(work);
      queries.finish(work, items_opened);
      shared.item_full.arrive();
    }
    ++items_opened;
  }

  // Parts may take the place of q.
  __device__ void weigh_parts() const {
    wait_for_last_dots();
    if (shared.items[0].work.parts == 1) return;
    if (thread() < p.chunks) shared.room.arrive_relaxed_cluster(static_cast<uint32_t>(thread()));
    Weighing<Row, kHeads>{p, shared, thread()}.run();
  }

  __device__ void prefetch_queries(const Work& work) const {
    const int head = thread();
    if (head >= kHeads || work.first_head + head >= p.heads) return;
    constexpr int kBytes = (Row::kCodes + Row::kRope) * 2;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, head);
    ptx::cp_async_bulk_prefetch_l2(q, kBytes);
  }
};

}  // namespace dsv4::sm90_fp8
