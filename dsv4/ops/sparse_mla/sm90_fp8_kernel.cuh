// The kernel: two warpgroups that compute, one that gathers; a block walks work items.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_exact.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_gather.cuh"

namespace dsv4::sm90_fp8 {

// q of an item on its way to Shared::q: fetched as it is while the item before is being stored,
// then decoded in place by the threads that fetched it. A thread has 16 dims of a head at a time.
template <class Row, int kHeads>
struct Queries {
  static constexpr int kPieces = (Row::kCodes + Row::kRope) / 16, kAll = kHeads * kPieces;

  // Calls visit(head, piece, low, high) with the places of this thread's 16-byte halves.
  template <class Visit>
  __device__ static void for_each_piece(Shared<Row, kHeads>& shared, const Visit& visit) {
#pragma unroll 4
    for (int at = this_thread(); at < kAll; at += kConsumers) {
      const int head = at / kPieces, piece = at % kPieces, first = piece % 4 * 2;
      uint8_t* row = shared.q[piece / 4] + head * 128;
      visit(head, piece, row + 16 * (first ^ head % 8), row + 16 * ((first + 1) ^ head % 8));
    }
  }

  // When nobody multiplies with Shared::q any more; nothing for a block without keys.
  __device__ static void fetch(const Params& p, int item, Shared<Row, kHeads>& shared) {
    if (item >= num_items(p)) return;
    const Work work = find_work<kHeads>(p, item);
    if (work.begin == work.end) return;
    const auto* q = static_cast<const bf16*>(p.q) + offset_of(p.q_at, work, 0);
    const int last = p.heads - work.first_head - 1;  // repeated: nobody looks at what comes of it
    for_each_piece(shared, [&](int head, int piece, uint8_t* low, uint8_t* high) {
      const bf16* from = q + min(head, last) * p.q_at.head + 16 * piece;
      ptx::cp_async<16>(low, from);
      ptx::cp_async<16>(high, from + 8);
    });
  }

  // To f16 what meets codes, in the order that KeyFragments wants.
  __device__ static void decode(int item, Shared<Row, kHeads>& shared) {
    ptx::cp_async_wait();
    bool fits = true;
    for_each_piece(shared, [&](int, int piece, uint8_t* low, uint8_t* high) {
      if (16 * piece >= Row::kCodes) return;
      const uint4 a = *reinterpret_cast<uint4*>(low), b = *reinterpret_cast<uint4*>(high);
      uint32_t pairs[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
      __nv_bfloat162 largest = __habs2(ptx::as_bf162(pairs[0]));
      for (uint32_t& pair : pairs) {
        largest = __hmax2(largest, __habs2(ptx::as_bf162(pair)));
        pair = pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
      }
      fits &= __hble2(largest, __float2bfloat162_rn(65280.f));  // the last before f16's end
      *reinterpret_cast<uint4*>(low) = {pairs[0], pairs[2], pairs[4], pairs[6]};
      *reinterpret_cast<uint4*>(high) = {pairs[1], pairs[3], pairs[5], pairs[7]};
    });
    if (!fits) shared.too_large = item + 1;
  }
};

// O^T and the sums leave, whole or as a part.
template <class Row, int kHeads>
__device__ void finish(Consumer<Row, kHeads>& c, int item, int& exchanges) {
  const Params& p = c.p;
  const Work work = find_work<kHeads>(p, item);
  const bool whole = work.parts == 1 && !p.out_f32, fits = c.shared.too_large != item + 1;
  if (whole && chunk_of_block(p) > 0) return;
  const int64_t parts = first_part(p, exchanges), mine = parts + chunk_of_block(p);
  pair_rope_dims(c);
  if (!fits) {
    attend_exactly<Row, kHeads>(p, item, whole ? -1 : mine);
  } else if (whole) {
    store_output(c, work);
  } else {
    store_part(c, mine);
  }
  if (whole) return;
  exchange_parts(p, c.shared, exchanges++);
  merge<Row, kHeads>(p, work, parts);
}

template <class Row, int kHeads, bool kTrackMaximum>
__device__ void consume(const Params& p, Shared<Row, kHeads>& shared) {
  Consumer<Row, kHeads> c(p, shared);
  int exchanges = 0, item = first_item(p);
  Queries<Row, kHeads>::fetch(p, item, shared);
  while (item < num_items(p)) {
    int left = find_work<kHeads>(p, item).tiles();
    if (left > 0) Queries<Row, kHeads>::decode(item, shared);
    const int thread = this_thread();
    if (thread < kHeads) {
      shared.reference[thread] = 0.f;
      shared.largest[thread] = ordered_int(-INFINITY);
    }
    if (thread == 0) shared.item = item;
    c.begin();
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrierBoth, kConsumers);
    for (; left > 0; left -= 2) {
      c.template iterate<kTrackMaximum>(min(left, 2));
    }
    const int done = item;
    item = next_item(p, item);
    if (c.has_large_values()) shared.too_large = done + 1;
    add_sums(c);  // both warpgroups meet there
    Queries<Row, kHeads>::fetch(p, item, shared);
    // Made anew of the item, instead of being kept in registers that the products need.
    finish(c, ptx::opaque(done), exchanges);
    ptx::barrier_sync(kBarrierBoth, kConsumers);
  }
}

template <class Row, int kHeads, bool kTrackMaximum>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_fp8_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Shared<Row, kHeads>;
  auto& shared = *reinterpret_cast<S*>(ptx::block_memory());
  if (threadIdx.x == 0) {
    if (ptx::shared_address(&shared) != kSharedBase) __trap();  // descriptors are constants
    for (auto& barrier : shared.full) barrier.init(Gather<Row, kHeads>::kArrivals);
    for (auto& barrier : shared.empty) barrier.init(kConsumers / kWarp);
    for (auto& barrier : shared.weights_full) barrier.init(kGroupThreads);
    for (auto& barrier : shared.weights_empty) barrier.init(kConsumers / kWarp);
    shared.parts.init(static_cast<uint32_t>(p.chunks));
    shared.too_large = 0;
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (p.chunks > 1) ptx::cluster_sync();  // others may arrive here from now on
  if (static_cast<int>(threadIdx.x) >= kConsumers) {
    ptx::lower_registers<56>();
    Gather<Row, kHeads>(p, shared).run();
  } else {
    ptx::raise_registers<224>();
    consume<Row, kHeads, kTrackMaximum>(p, shared);
  }
#else
  __trap();  // compiled for another architecture; the row rejects those
#endif
}

}  // namespace dsv4::sm90_fp8
