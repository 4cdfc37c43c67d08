// Scores and selection of few entries by a cluster of CTAs, in one launch.
//
// Problem    as kernel.cuh, the same bits
// Bound      latency: query -> products -> one exchange -> two histograms
// Tiles      a warp has its keys once, decoded in registers
// Before the wait  where p.settled promises it: lists, the keys of entries that earlier steps
//            closed, their decoding, and the rows of the first CTA's entries. After it come the
//            query and the keys that this step appends
// Exchange   the order keys of all entries go to the first CTA (st.async), which selects: a thread
//            has kThreadKeys neighboring entries. The other CTAs end
// Barriers   received | 1 and the bytes of all order keys | the first CTA itself, keys of all CTAs
//            | its threads

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/model/index_select/sm90_few/scores.cuh"

namespace dsv4::index_select_kernel::sm90_few {

// The entries of a query, and this CTA's slice of them.
struct Slice {
  const int32_t* pages;  // of the query's sequence
  int visible;           // entries of the query
  int begin, end;        // of this CTA
  int settled;           // entries from here on are complete after the wait only
};
template <class C>
__device__ Slice slice_of(const Params& p, int64_t query) {
  const auto rank = static_cast<int>(ptx::cluster_ctarank());
  Slice slice{.pages = p.pages + p.sequence[query] * p.pages_stride,
              .visible = min(p.visible[query], p.max_visible)};
  const int entries = C::slice_of(slice.visible);
  slice.begin = min(rank * entries, slice.visible);
  slice.end = min(slice.begin + entries, slice.visible);
  slice.settled = p.settled == nullptr ? slice.visible : p.settled[query];
  return slice;
}

// The tiles of a warp.
template <class C>
struct WarpKeys {
  Entries entries[C::kTiles];
  indexer_kernel::KeyTile tiles[C::kTiles];

  // Entries first ..; those from `end` on are zeros.
  __device__ void load(const indexer_kernel::Keys& keys, const int32_t* pages, int first, int end) {
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i)
      entries[i].load(keys, pages, first + i * indexer_kernel::kTileKeys, end);
  }
  __device__ void decode() {
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) entries[i].decode(tiles[i]);
  }
};

// Sends the order keys of a tile's entries first + g and first + 8 + g, the same in four lanes, to
// the first CTA. order: of all entries there
template <class C>
__device__ void send_keys(GatherShared<C>& shared, uint16_t* order, int first,
                          const uint32_t (&keys)[2]) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4, j = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t next = __shfl_xor_sync(~0u, keys[r], 4);  // of the entry g ^ 1
    if (g % 2 == 0 && j == r) {
      ptx::st_async(reinterpret_cast<uint32_t*>(order + first + 8 * r + g), 0, keys[r] | next << 16,
                    shared.received);
    }
  }
}
// What the first CTA receives.
__device__ inline uint32_t bytes_of_keys(int visible) {
  return static_cast<uint32_t>(align_up(visible, indexer_kernel::kTileKeys) * sizeof(uint16_t));
}

// Cache rows of this thread's entries.
struct Rows {
  int row[kThreadKeys];

  __device__ void load(const indexer_kernel::Keys& keys, const Slice& slice) {
    const int first = static_cast<int>(threadIdx.x) * kThreadKeys;
    int page = first / keys.page_entries, entry = first % keys.page_entries, base = 0;
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i, ++entry) {
      if (entry == keys.page_entries) entry = 0, ++page;
      if ((i == 0 || entry == 0) && first + i < slice.visible)
        base = slice.pages[page] * keys.page_entries;
      row[i] = base + entry;
    }
  }
};

// Where the k-th largest of the keys counted in `bins` lies; all threads get it. After a barrier.
template <class C>
__device__ Bin find_bin(GatherShared<C>& shared, const int (&bins)[kBins], int k) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const int bin = kBins - 1 - static_cast<int>(threadIdx.x);  // descending; negative: none
  int here = 0, through = 0;
  if (bin >= 0) {
    here = bins[bin], through = warp_sum_through(here);
    if (lane == kWarp - 1) shared.of_warp[warp] = through;
  }
  __syncthreads();
  if (bin >= 0) {
#pragma unroll
    for (int w = 0; w < kBins / kWarp; ++w) through += w < warp ? shared.of_warp[w] : 0;
    if (through - here < k && k <= through)
      shared.found.bin = bin, shared.found.left = k - (through - here);
    if (bin == 0) shared.found.total = through;
  }
  __syncthreads();
  return shared.found;
}

// Stores the rows of the k largest keys in ascending entry, then -1. order: of all entries, whole
// tiles. All threads of the first CTA, after the keys have been received.
template <class C>
__device__ void select_gathered(GatherShared<C>& shared, const uint16_t* order, int visible,
                                const Rows& rows, int k, int32_t* out) {
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  uint4 words{};
  if (thread * kThreadKeys < visible) words = reinterpret_cast<const uint4*>(order)[thread];
  const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
  const auto key = [&](int i) { return pairs[i / 2] >> i % 2 * 16 & 0xffff; };
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) {
    if (key(i) != 0) atomicAdd(&shared.bins[0][key(i) >> kDigitBits], 1);
  }
  __syncthreads();
  const Bin high = find_bin(shared, shared.bins[0], k);
  uint32_t bound = 0;
  int num_equal = 0;
  if (high.total > k) {
#pragma unroll
    for (int i = 0; i < kThreadKeys; ++i) {
      if (key(i) >> kDigitBits == static_cast<uint32_t>(high.bin) && key(i) != 0)
        atomicAdd(&shared.bins[1][key(i) & (kBins - 1)], 1);
    }
    __syncthreads();
    const Bin low = find_bin(shared, shared.bins[1], high.left);
    bound = static_cast<uint32_t>(high.bin << kDigitBits | low.bin), num_equal = low.left;
  }

  // Keys above and at the bound of all threads before this one, in the halves of a word.
  const auto is_above = [&](int i) { return key(i) > bound; };
  const auto is_equal = [&](int i) { return key(i) == bound && key(i) != 0; };
  int mine = 0;
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) mine += is_above(i) ? 1 : is_equal(i) ? 1 << 16 : 0;
  int before = warp_sum_through(mine);
  if (thread % kWarp == kWarp - 1) shared.before[warp] = before;
  __syncthreads();
  before -= mine;
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) before += w < warp ? shared.before[w] : 0;
  int above = before & 0xffff, equal = before >> 16;
#pragma unroll
  for (int i = 0; i < kThreadKeys; ++i) {
    if (is_above(i) || (is_equal(i) && equal < num_equal))
      out[above + min(equal, num_equal)] = rows.row[i];
    above += is_above(i) ? 1 : 0, equal += is_equal(i) ? 1 : 0;
  }
  for (int i = min(high.total, k) + thread; i < k; i += C::kThreads) out[i] = -1;
}

namespace gather {

// grid: C::kCtas per query
template <class C, class W>
__global__ void __launch_bounds__(C::kThreads, C::kCtasOfSm)
    select_kernel(const __grid_constant__ Params p) {
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<GatherShared<C>*>(ptx::dynamic_smem());
  auto* const b = reinterpret_cast<uint4*>(&shared + 1);
  auto* const pairs = reinterpret_cast<uint32_t*>(b + p.queries.b_words());
  auto* const order = reinterpret_cast<uint16_t*>(pairs + p.queries.weight_words());
  if (threadIdx.x < kBins) shared.bins[0][threadIdx.x] = shared.bins[1][threadIdx.x] = 0;
  if (threadIdx.x == 0) {
    shared.received.init(1);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::cluster_arrive_relaxed();
  if (p.settled == nullptr) ptx::griddepcontrol_wait();
  const int64_t query = ptx::clusterid_x();
  const bool selects = ptx::cluster_ctarank() == 0;
  const Slice slice = slice_of<C>(p, query);
  const int first = slice.begin + static_cast<int>(threadIdx.x) / kWarp * C::kWarpKeys;
  WarpKeys<C> keys;
  keys.load(p.keys, slice.pages, first, min(slice.end, slice.settled));
  keys.decode();
  Rows rows;
  if (selects) {
    if (threadIdx.x == 0) {
      shared.received.expect_tx(bytes_of_keys(slice.visible));
      shared.received.arrive();
    }
    if constexpr (C::kCtasOfSm == 1) rows.load(p.keys, slice);
  }
  ptx::cluster_wait();  // the first CTA's barrier can count
  if (p.settled != nullptr) ptx::griddepcontrol_wait();

  // Entries that this step appends.
  const bool fresh = slice.settled < slice.end && slice.settled < first + C::kWarpKeys;
  if (fresh) keys.load(p.keys, slice.pages, first, slice.end);
  indexer_kernel::load_query_at_once(p.queries, query, static_cast<const W*>(p.weights), b, pairs);
  if (fresh) keys.decode();
  __syncthreads();
  if (first < slice.end) {
    float sums[C::kTiles][2] = {};
    indexer_kernel::score<C::kTiles, C::kTogether, true>(keys.tiles, b, pairs, p.queries.groups(),
                                                         sums);
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
      const int of_tile = first + tile * indexer_kernel::kTileKeys;
      uint32_t order_keys[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        order_keys[r] = of_tile + 8 * r + g < slice.end ? short_key(sums[tile][r]) : 0;
      if (of_tile < slice.end) send_keys(shared, order, of_tile, order_keys);
    }
  }
  if (!selects) return;
  if constexpr (C::kCtasOfSm > 1) rows.load(p.keys, slice);  // registers for two CTAs
  shared.received.wait_acquire_cluster(0);
  select_gathered(shared, order, slice.visible, rows, p.k, p.indices + query * p.indices_stride);
}

}  // namespace gather

}  // namespace dsv4::index_select_kernel::sm90_few
