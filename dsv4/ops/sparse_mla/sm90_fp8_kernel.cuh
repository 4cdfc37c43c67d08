// The kernel: two warpgroups that compute, one that gathers; a block walks work items.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_gather.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_store.cuh"

namespace dsv4::mla90 {

__device__ inline __nv_bfloat162 bf162_of(uint32_t bits) {
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}

// 16 dims of a head -> Shared::q: to f16 what meets codes, in the order that KeyFragments wants.
template <class Row, int kHeads>
__device__ bool store_query(Shared<Row, kHeads>& shared, int head, int piece, uint4 low,
                            uint4 high) {
  bool fits = true;
  if (16 * piece < Row::kCodes) {
    uint32_t pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    __nv_bfloat162 largest = __habs2(bf162_of(pairs[0]));
    for (uint32_t& pair : pairs) {
      largest = __hmax2(largest, __habs2(bf162_of(pair)));
      pair = pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
    }
    fits = __hble2(largest, __float2bfloat162_rn(65280.f));  // the last before f16's end
    low = {pairs[0], pairs[2], pairs[4], pairs[6]};
    high = {pairs[1], pairs[3], pairs[5], pairs[7]};
  }
  auto* to = shared.q[piece / 4] + head * 128;
  const int first = piece % 4 * 2;
  *reinterpret_cast<uint4*>(to + 16 * (first ^ head % 8)) = low;
  *reinterpret_cast<uint4*>(to + 16 * ((first + 1) ^ head % 8)) = high;
  return fits;
}

// q of the item's heads -> Shared::q, all loads at once: nothing else is in registers yet.
template <class Row, int kHeads>
__device__ void load_queries(const Params& p, const Work& work, Shared<Row, kHeads>& shared) {
  constexpr int kPieces = (Row::kCodes + Row::kRope) / 16, kAll = kHeads * kPieces;
  constexpr int kEach = (kAll + kConsumers - 1) / kConsumers;
  const auto* q = static_cast<const bf16*>(p.q) + query_offset(p, work, 0);
  const int thread = this_thread();
  uint4 raw[kEach][2];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    // Heads that do not exist repeat the last one: nobody looks at what comes of them.
    const int at = i * kConsumers + thread;
    const int head = min(at / kPieces, p.heads - work.first_head - 1), piece = at % kPieces;
    const auto* from = reinterpret_cast<const uint4*>(q + head * p.q_head_stride + 16 * piece);
    raw[i][0] = __ldg(from), raw[i][1] = __ldg(from + 1);
  }
  bool fits = true;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int at = i * kConsumers + thread;
    if (at < kAll) fits &= store_query(shared, at / kPieces, at % kPieces, raw[i][0], raw[i][1]);
  }
  if (!fits) shared.too_large = work.item + 1;
}

// The same number, but the compiler does not know: what was made of it is made anew, instead of
// being kept in registers that the products need.
__device__ inline int again(int item) {
  asm volatile("" : "+r"(item));
  return item;
}

template <class Row, int kHeads>
__device__ void finish(Consumer<Row, kHeads>& c, int item, int& exchanges) {
  const Work work = find_work<kHeads>(c.p, item);
  add_sums(c);
  pair_rope_dims(c);
  if (work.parts == 1 && !c.p.out_f32) {
    if (chunk_of_block(c.p) == 0) store_output(c, work);
    return;
  }
  store_part(c, work);
  exchange_parts(c.p, c.shared, exchanges++);
  merge<Row, kHeads>(c.p, work);
}

template <class Row, int kHeads, bool kTrackMaximum>
__device__ void consume(const Params& p, Shared<Row, kHeads>& shared) {
  Consumer<Row, kHeads> c(p, shared);
  int exchanges = 0;
  for (int item = first_item(p); item < num_items(p); item = next_item(p, item)) {
    int left = 0;
    {
      const Work work = find_work<kHeads>(p, item);
      left = work.tiles();
      if (left > 0) load_queries(p, work, shared);
    }
    const int thread = this_thread();
    if (thread < kHeads) {
      shared.reference[thread] = 0.f;
      shared.largest[thread] = ordered_int(-INFINITY);
    }
    if (thread == 0) shared.item = item;
    c.begin();
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrierBoth, kConsumers);
    for (; left > 0; left -= 2) c.template iterate<kTrackMaximum>(min(left, 2));
    finish(c, again(item), exchanges);
    ptx::barrier_sync(kBarrierBoth, kConsumers);
  }
}

template <class Row, int kHeads, bool kTrackMaximum>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_fp8_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = Shared<Row, kHeads>;
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
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
#endif
}

}  // namespace dsv4::mla90
