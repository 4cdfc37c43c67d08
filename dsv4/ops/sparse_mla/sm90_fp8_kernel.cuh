// The kernel: two warpgroups that compute, one that gathers; a block walks work
// items, or has a chunk of one.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_consume.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_exact.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_gather.cuh"

namespace dsv4::sm90_fp8 {

// Of a thread; together what the threads of a block are launched with. With one more the kernel
// would wait for registers for ever.
template <class Row, int kHeads>
constexpr int kGatherRegisters = Consumer<Row, kHeads>::kTight ? 56 : 72;
template <class Row, int kHeads>
constexpr int kComputeRegisters = (3 * 168 - kGatherRegisters<Row, kHeads>) / 2;

// O^T leaves, whole or as a part.
template <class Row, int kHeads>
__device__ void finish(Consumer<Row, kHeads>& c) {
  const Params& p = c.p;
  c.wait_for_sums();
  const Work work = c.item().work;
  if (c.item().too_large == work.item + 1) return finish_exactly(p, c.shared, c.item().work);
  pair_rope_dims(c);
  const auto store = [&] { store_output(c, work); };
  if (work.parts > 1) return share(p, c.shared, work, true, store, [&] { send_part(c); });
  if (chunk_of_block(p) != 0) return;
  finish_sums(c, work);
  store();
}

template <class Row, int kHeads, bool kTrackMaximum>
__device__ void consume(const Params& p, Shared<Row, kHeads>& shared, const Work& first) {
  Consumer<Row, kHeads> c(p, shared);
  const Queries<Row, kHeads, kConsumers> queries{p, shared, thread_index()};
  ptx::barrier_sync(kBarrierIds, kThreads);
  queries.fetch(first);
  queries.finish(first, 0);
  if (p.chunks > 1) ptx::cluster_wait();  // the other blocks have begun while q was on its way
  ptx::barrier_sync(kBarrierBoth, kConsumers);
  for (;;) {
    c.begin();
    if (c.tiles_left() == 0) skip(c);
    while (c.tiles_left() > 0) iterate<kTrackMaximum>(c);
    finish(c);
    const int turn = c.turn(kTurnOfItem);
    if (next_item(p, c.item().work.item) >= num_items(p)) return;
    c.state ^= kTurnOfItem;
    shared.item_full.wait(turn);
  }
}

template <class Row, int kHeads, bool kTrackMaximum>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_fp8_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shared<Row, kHeads>;
  auto& shared = *reinterpret_cast<S*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) {
    // Matrix descriptors are made from the constant.
    if (ptx::smem_offset(ptx::smem_address(&shared)) != kSharedBase) __trap();
    for (auto& barrier : shared.full) barrier.init(kSlotRows);
    for (auto& barrier : shared.empty) barrier.init(kConsumers);
    for (auto& barrier : shared.weights_full) barrier.init(kGroupThreads);
    for (auto& barrier : shared.weights_empty) barrier.init(kConsumers);
    for (auto& barrier : shared.decided) barrier.init(kGroupThreads);
    shared.item_full.init(kGroupThreads);
    shared.item_empty.init(kConsumers);
    shared.sums_full.init(kConsumers);
    shared.room.init(static_cast<uint32_t>(p.chunks));
    shared.summaries_full.init(1);
    shared.weighed.init(kGroupThreads);
    shared.parts_full.init(1);
    for (auto& item : shared.items) item.too_large = 0;
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (p.chunks > 1) ptx::cluster_arrive_relaxed();  // others may arrive here from now on
  ptx::griddepcontrol_launch_dependents();
  Work first = place_work<kHeads>(p, first_item(p));  // while the kernel before may still run
  first.request = ptx::opaque(first.request), first.query = ptx::opaque(first.query);
  ptx::griddepcontrol_wait();
  measure(p, first);
  if (static_cast<int>(threadIdx.x) >= kConsumers) {
    ptx::setmaxnreg_dec<kGatherRegisters<Row, kHeads>>();
    Gather<Row, kHeads>(p, shared).run(first);
  } else {
    ptx::setmaxnreg_inc<kComputeRegisters<Row, kHeads>>();
    consume<Row, kHeads, kTrackMaximum>(p, shared, first);
  }
#else
  __trap();  // compiled for another architecture; the row rejects those
#endif
}

}  // namespace dsv4::sm90_fp8
