// Scores and selection of one query by a cluster of CTAs, in one launch, for many entries (few:
// gather.cuh).
//
// Problem    index_select.h under kOfficial, packed keys of 128 dims. The scores have the bits of
//            index_scores `cuda_mma`; the k largest by two digits of 8 bits, ties to the lowest
//            entry, then cache rows in ascending entry
// Bound      latency: list -> page -> key -> products -> two exchanges. With many entries the
//            instructions of decoding keys and of the products
// Tiles      a CTA has an eighth of the visible entries, a warp 16 or 32 of them at a time; the
//            next ones are loaded while these are multiplied. Scores stay in shared memory as
//            16-bit order keys
// Exchange   a digit's histogram goes from every CTA to every CTA (st.async, 512 bytes each), so
//            all reach the same threshold, and each knows how many keys the CTAs before it have
//            above and at it: where its own rows begin in the result. No atomics but integer counts
// Barriers   received[i] | 1 and 512 bytes of each CTA | the CTA itself, histograms of digit i
//            | all threads. A CTA ends after it has received everything that is sent to it
// Before the wait  barriers, cleared histograms

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/model/index_select/sm90_few/scores.cuh"

namespace dsv4::index_select_kernel::sm90_few {

// Sends bins[digit] to all CTAs and waits for theirs. After a barrier that follows the counting.
template <class C>
__device__ void exchange(Shared<C>& shared, int digit) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kLaneBins = kBins / kWarp;
  uint16_t* const to = shared.counts[digit][ptx::cluster_ctarank()] + kLaneBins * lane;
  const int* const bins = shared.bins[digit] + kLaneBins * lane;
  for (int r = warp; r < C::kCtas; r += C::kWarps) {
#pragma unroll
    for (int i = 0; i < kLaneBins; i += 4) {
      const auto pair = [&](int j) { return static_cast<uint32_t>(bins[j] | bins[j + 1] << 16); };
      ptx::st_async(reinterpret_cast<uint2*>(to + i), static_cast<uint32_t>(r),
                    uint2{pair(i), pair(i + 2)}, shared.received[digit]);
    }
  }
  shared.received[digit].wait_acquire_cluster(0);
}

// Where the k-th largest of the counted keys lies; all threads get it.
template <class C>
__device__ Digit find_digit(Shared<C>& shared, int digit, int k) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int bin = kBins - 1 - static_cast<int>(threadIdx.x);  // descending; negative: none
  const auto rank = static_cast<int>(ptx::cluster_ctarank());
  int all = 0, before = 0;  // of this bin: all CTAs, those before this one
  int all_through = 0, before_through = 0;
  if (bin >= 0) {
#pragma unroll
    for (int r = 0; r < C::kCtas; ++r) {
      const int count = shared.counts[digit][r][bin];
      all += count;
      before += r < rank ? count : 0;
    }
    all_through = warp_sum_through(all), before_through = warp_sum_through(before);
    if (lane == kWarp - 1)
      shared.warp_all[warp] = all_through, shared.warp_before[warp] = before_through;
  }
  __syncthreads();
  if (bin >= 0) {
#pragma unroll
    for (int w = 0; w < kBins / kWarp; ++w) {
      if (w < warp) all_through += shared.warp_all[w], before_through += shared.warp_before[w];
    }
    if (all_through - all < k && k <= all_through) {
      shared.digit.bin = bin;
      shared.digit.left = k - (all_through - all);
      shared.digit.above = before_through - before;
      shared.digit.within = before;
    }
    if (bin == 0) shared.digit.total = all_through, shared.digit.before = before_through;
  }
  __syncthreads();
  return shared.digit;
}

// What a CTA takes of its slice: keys above `bound`, and of those equal to it the first `equal` of
// the cluster. above_before, equal_before: such keys of the CTAs before this one.
struct Taken {
  uint32_t bound;
  int equal, above_before, equal_before;
};

// All threads of the cluster reach the same threshold. order: [count]
template <class C>
__device__ Taken find_threshold(Shared<C>& shared, const uint16_t* order, int count, int k,
                                int* total) {
  exchange(shared, 0);
  const Digit high = find_digit(shared, 0, k);
  *total = min(high.total, k);
  if (high.total <= k) return {.bound = 0, .equal = 0, .above_before = high.before};
  for (int i = threadIdx.x; i < count; i += C::kThreads) {
    const int key = order[i];
    if (key >> kDigitBits == high.bin && key != 0) atomicAdd(&shared.bins[1][key & (kBins - 1)], 1);
  }
  __syncthreads();
  exchange(shared, 1);
  const Digit low = find_digit(shared, 1, high.left);
  return {.bound = static_cast<uint32_t>(high.bin << kDigitBits | low.bin),
          .equal = low.left,
          .above_before = high.above + low.above,
          .equal_before = low.within};
}

// Stores the rows of the entries that this CTA takes. Warps own consecutive stretches.
template <class C, class RowOf>
__device__ void store_taken(Shared<C>& shared, const uint16_t* order, int count, const Taken& taken,
                            int32_t* out, const RowOf& row_of) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int stretch = static_cast<int>(align_up(ceil_div(count, C::kWarps), kWarp));
  const int begin = min(warp * stretch, count), end = min(begin + stretch, count);
  const auto key_at = [&](int i) { return i + lane < end ? uint32_t{order[i + lane]} : 0u; };
  int num_above = 0, num_equal = 0;
  for (int i = begin; i < end; i += kWarp) {
    const uint32_t key = key_at(i);
    num_above += __popc(__ballot_sync(~0u, key > taken.bound));
    num_equal += __popc(__ballot_sync(~0u, key == taken.bound && key != 0));
  }
  if (lane == 0) shared.above[warp] = num_above, shared.equal[warp] = num_equal;
  __syncthreads();
  int above = taken.above_before, equal = taken.equal_before;
  for (int w = 0; w < warp; ++w) above += shared.above[w], equal += shared.equal[w];
  const unsigned lanes_before = (1u << lane) - 1;
  for (int i = begin; i < end; i += kWarp) {
    const uint32_t key = key_at(i);
    const unsigned is_above = __ballot_sync(~0u, key > taken.bound);
    const unsigned is_equal = __ballot_sync(~0u, key == taken.bound && key != 0);
    const int equal_rank = equal + __popc(is_equal & lanes_before);
    const bool takes =
        (is_above >> lane & 1) != 0 || ((is_equal >> lane & 1) != 0 && equal_rank < taken.equal);
    if (takes) {
      const int rank = above + __popc(is_above & lanes_before) + min(equal_rank, taken.equal);
      out[rank] = row_of(i + lane);
    }
    above += __popc(is_above);
    equal += __popc(is_equal);
  }
}

// grid: C::kCtas per query
template <class C, class W>
__global__ void __launch_bounds__(C::kThreads, 1) select_kernel(const __grid_constant__ Params p) {
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<Shared<C>*>(ptx::dynamic_smem());
  auto* const b = reinterpret_cast<uint4*>(&shared + 1);
  auto* const pairs = reinterpret_cast<uint32_t*>(b + p.queries.b_words());
  auto* const order = reinterpret_cast<uint16_t*>(pairs + p.queries.weight_words());
  if (threadIdx.x < kBins) shared.bins[0][threadIdx.x] = shared.bins[1][threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    for (ptx::Mbarrier& barrier : shared.received) barrier.init(1);
    ptx::fence_mbarrier_init();
    for (ptx::Mbarrier& barrier : shared.received) {
      barrier.expect_tx(C::kCtas * kBins * sizeof(uint16_t));
      barrier.arrive();
    }
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();  // all barriers can count
  __syncthreads();      // the histograms are clear
  ptx::griddepcontrol_wait();

  const int64_t query = ptx::clusterid_x();
  const auto rank = static_cast<int>(ptx::cluster_ctarank());
  const int visible = min(p.visible[query], p.max_visible), slice = C::slice_of(visible);
  const int begin = min(rank * slice, visible), end = min(begin + slice, visible);
  score_slice<C, W>(p, query, begin, end, b, pairs, order, shared.bins[0]);
  __syncthreads();
  int total = 0;
  const Taken taken = find_threshold(shared, order, end - begin, p.k, &total);

  int32_t* const out = p.indices + query * p.indices_stride;
  const int32_t* const pages = p.pages + p.sequence[query] * p.pages_stride;
  const int entries = p.keys.page_entries;
  store_taken(shared, order, end - begin, taken, out, [&](int i) {
    const int s = begin + i;
    return pages[s / entries] * entries + s % entries;
  });
  for (int i = total + rank * C::kThreads + static_cast<int>(threadIdx.x); i < p.k;
       i += C::kCtas * C::kThreads)
    out[i] = -1;
}

}  // namespace dsv4::index_select_kernel::sm90_few
