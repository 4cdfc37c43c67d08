// The kernel: two warpgroups that compute, one that gathers; a block walks work items.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_consume.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_exact.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_gather.cuh"

namespace dsv4::sm90_fp8 {

// O^T and the sums leave, whole or as a part.
template <class Row, int kHeads>
__device__ void finish(Consumer<Row, kHeads>& c) {
  const Params& p = c.p;
  c.wait_for_sums();
  const Work work = c.item().work;
  const Exchange exchange = c.exchange();
  if (work.parts > 1) c.count_exchange();
  if (c.item().too_large == work.item + 1)
    return finish_exactly<Row, kHeads>(p, c.shared, &c.item(), exchange);
  pair_rope_dims(c);
  int only = 0;
  if (work.parts > 1) {
    const int64_t parts = first_part(p, exchange), mine = parts + chunk_of_block(p);
    const bool has_keys = chunk_of_block(p) < work.parts && store_part(c, mine);
    only = exchange_parts(p, c.shared, exchange, has_keys);
    if (only == kSeveral) return merge<Row, kHeads>(p, c.shared, work, parts);
  }
  if (only == chunk_of_block(p)) store_output(c, work);
}

template <class Row, int kHeads, bool kTrackMaximum>
__device__ void consume(const Params& p, Shared<Row, kHeads>& shared) {
  Consumer<Row, kHeads> c(p, shared);
  Queries<Row, kHeads, kConsumers>{p, shared, this_thread()}.open(
      find_work<kHeads>(p, first_item(p)), 0);
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
  auto& shared = *reinterpret_cast<S*>(ptx::block_memory());
  if (threadIdx.x == 0) {
    // Matrix descriptors are made from the constant.
    if (ptx::offset_in_block(ptx::shared_address(&shared)) != kSharedBase) __trap();
    for (auto& barrier : shared.full) barrier.init(Gather<Row, kHeads>::kArrivals);
    for (auto& barrier : shared.empty) barrier.init(kConsumers);
    for (auto& barrier : shared.weights_full) barrier.init(kGroupThreads);
    for (auto& barrier : shared.weights_empty) barrier.init(kConsumers);
    for (auto& barrier : shared.decided) barrier.init(kGroupThreads);
    shared.item_full.init(kGroupThreads);
    shared.item_empty.init(kConsumers);
    shared.sums_full.init(kConsumers);
    for (auto& barrier : shared.parts) barrier.init(static_cast<uint32_t>(p.chunks));
    for (auto& item : shared.items) item.too_large = 0;
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (p.chunks > 1) ptx::cluster_arrive();  // others may arrive here from now on
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  if (static_cast<int>(threadIdx.x) >= kConsumers) {
    ptx::lower_registers<56>();
    Gather<Row, kHeads>(p, shared).run();
    if (p.chunks > 1) ptx::cluster_wait();  // who arrives has to
  } else {
    ptx::raise_registers<224>();
    consume<Row, kHeads, kTrackMaximum>(p, shared);
  }
#else
  __trap();  // compiled for another architecture; the row rejects those
#endif
}

}  // namespace dsv4::sm90_fp8
