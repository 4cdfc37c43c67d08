// The kernel: two warpgroups that compute, one that gathers; a block walks work items.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_gather.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_store.cuh"

namespace dsv4::mla90 {

// q of the item's heads -> Shared::q. Thread: 16 dims of a head at a time.
template <class Row, int kHeads>
__device__ void load_queries(const Params& p, const Work& work, Shared<Row, kHeads>& shared) {
  constexpr int kPieces = (Row::kCodes + Row::kRope) / 16, kAll = kHeads * kPieces;
  constexpr int kAhead = 8;
  const auto* q = static_cast<const bf16*>(p.q) + work.request * p.q_batch_stride +
                  work.query * p.q_query_stride + work.first_head * p.q_head_stride;
  bool fits = true;
  for (int first = static_cast<int>(threadIdx.x); first < kAll; first += kAhead * kConsumers) {
    uint4 raw[kAhead][2];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kConsumers, head = at / kPieces, piece = at % kPieces;
      raw[i][0] = raw[i][1] = {0, 0, 0, 0};
      if (at >= kAll || work.first_head + head >= p.heads) continue;
      const auto* from = reinterpret_cast<const uint4*>(q + head * p.q_head_stride + 16 * piece);
      raw[i][0] = __ldg(from), raw[i][1] = __ldg(from + 1);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * kConsumers, head = at / kPieces, piece = at % kPieces;
      if (at >= kAll) continue;
      uint4 low = raw[i][0], high = raw[i][1];
      if (16 * piece < Row::kCodes) {
        uint32_t pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        for (uint32_t& pair : pairs) {
          const float2 values = __bfloat1622float2(ptx::as_bf162(pair));
          fits &= fabsf(values.x) < 65504.f && fabsf(values.y) < 65504.f;
          pair = pack_f16(values.x, values.y);
        }
        low = {pairs[0], pairs[2], pairs[4], pairs[6]};
        high = {pairs[1], pairs[3], pairs[5], pairs[7]};
      }
      auto* to = shared.q[piece / 4] + head * 128;
      const int first_piece = piece % 4 * 2;
      *reinterpret_cast<uint4*>(to + 16 * (first_piece ^ head % 8)) = low;
      *reinterpret_cast<uint4*>(to + 16 * ((first_piece + 1) ^ head % 8)) = high;
    }
  }
  if (!fits) shared.too_large = 1;
}

// The same number, but the compiler does not know: what was made of it is made anew, instead of
// being kept in registers that the products need.
__device__ inline int again(int item) {
  asm volatile("" : "+r"(item));
  return item;
}

template <class Row, int kHeads>
__device__ void finish(Consumer<Row, kHeads>& c, int item) {
  const Work work = find_work<kHeads>(c.p, item);
  add_sums(c);
  if (work.parts == 1 && !c.p.out_f32) {
    store_output(c, work);
  } else {
    store_part(c, work);
    if (arrive_last(c.p, work, c.shared)) merge<Row, kHeads>(c.p, work);
  }
}

template <class Row, int kHeads, bool kTrackMaximum>
__device__ void consume(const Params& p, Shared<Row, kHeads>& shared) {
  Consumer<Row, kHeads> c(p, shared);
  for (int item = static_cast<int>(blockIdx.x); item < num_items(p); item += static_cast<int>(gridDim.x)) {
    const Work work = find_work<kHeads>(p, item);
    if (is_idle(p, work)) continue;
    int left = work.tiles();
    if (static_cast<int>(threadIdx.x) < kHeads) {
      shared.reference[threadIdx.x] = 0.f;
      shared.largest[threadIdx.x] = ordered_int(-INFINITY);
    }
    if (threadIdx.x == 0) shared.too_large = 0;
    ptx::barrier_sync(kBarrierBoth, kConsumers);
    load_queries(p, work, shared);
    c.clear();
    ptx::fence_proxy_async();
    ptx::barrier_sync(kBarrierBoth, kConsumers);
    for (; left > 0; left -= 2) {
      c.template iterate<kTrackMaximum>(min(left, 2));
    }
    finish(c, again(item));
    ptx::barrier_sync(kBarrierBoth, kConsumers);
  }
}

template <class Row, int kHeads, bool kTrackMaximum>
__global__ void __launch_bounds__(kThreads, 1) sparse_mla_fp8_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) unsigned char memory[];
  using S = Shared<Row, kHeads>;
  auto& shared = *reinterpret_cast<S*>(memory);
  if (threadIdx.x == 0) {
    for (auto& barrier : shared.full) barrier.init(Gather<Row, kHeads>::kArrivals);
    for (auto& barrier : shared.empty) barrier.init(kConsumers / kWarp);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
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
