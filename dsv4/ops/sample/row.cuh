// What one row of sample.h costs on a device: an exact search for the token at a position of the
// cumulative masses, without sorting.
//
// A team of CTAs shares the row; each has a slice of consecutive ids. Tokens are ranked by an order
// key (larger first) and then by id. The row is divided into 128 bins by logit: a histogram of
// counts and masses, added over the team, names the bin in which a position lies. The up to 256
// tokens of that bin are gathered and compared all with all; a bin with more tokens is divided
// further, by the bits of the order key, and tokens of equal key are counted in the order of their
// ids. Masses are integers (mass.h), so no order of additions is seen in the result.
//
// A column of the histogram belongs to one lane of every warp: lanes of a warp never add to the
// same word, however few bins the logits fall in.
//
// All CTAs of a team draw the same conclusions from the same exchanged numbers. An exchange writes
// one of two buffers, synchronizes the team and reads the buffers of all CTAs: whoever writes a
// buffer again has synchronized once more after every read of it.

#pragma once

#include "dsv4/base/rng.h"
#include "dsv4/device/math.cuh"
#include "dsv4/device/select.cuh"
#include "dsv4/ops/sample/adjust.h"
#include "dsv4/ops/sample/mass.h"
#include "dsv4/ops/sample/team.cuh"

namespace dsv4::sampling {

inline constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
inline constexpr int kBinBits = 7, kBins = 1 << kBinBits;
inline constexpr int kListed = 256;  // tokens that are compared all with all

// An order key and the complement of an id: the larger item comes first. 0: none.
using Item = uint64_t;
__device__ inline Item item_of(uint32_t key, int id) {
  return static_cast<Item>(key) << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline uint32_t key_of(Item item) {
  return static_cast<uint32_t>(item >> 32);
}
__device__ inline int id_of(Item item) {
  return static_cast<int>(~static_cast<uint32_t>(item));
}

struct Bin {
  uint64_t mass;
  uint32_t count;
};
struct Exchange {
  uint64_t wide[kListed];
  uint32_t narrow[kBins];
};
struct Chosen {
  int bin;
  Bin before, inside;
};
struct Found {
  Item item;              // id -1 when only its key was wanted
  uint64_t mass_through;  // of all tokens up to and including this one
};

struct Shared {
  uint32_t low[kBins][kWarp], high[kBins][kWarp], count[kBins][kWarp];  // a column per lane
  Exchange exchange[2];
  double exp2_table[kExp2Steps];
  Bin first[kBins], further[kBins];  // of the whole row; of a bin that is divided further
  Item listed[kListed];
  uint64_t sizes[kListed];
  Item top[kMaxTopLogprobs];
  uint64_t wide[kWarps];
  uint32_t narrow[kWarps];
  Chosen chosen;
  Found found;
};

// What a token counts: its mass, or 1.
struct Sizes {
  Weights weights;
  bool ones;

  __device__ uint64_t of(float logit, const Shared& shared) const {
    if (ones) return logit > -INFINITY ? 1 : 0;
    return weights.of(logit, shared.exp2_table);
  }
};

// The logits of a bin: those that the first division gives this number, with keys in
// [low, high].
struct Interval {
  float half_largest, bins_per_half;  // halves: a difference of two f32 may overflow
  int bin;
  uint32_t low, high;

  __device__ int bin_of(float logit) const {
    const float below = __fsub_rn(half_largest, __fmul_rn(0.5f, logit));
    return min(__float2int_rz(__fmul_rn(below, bins_per_half)), kBins - 1);  // NaN is 0
  }
  // Most tokens are in another bin, which costs less to see than their keys. low > 0, so no banned
  // token is in an interval.
  __device__ bool holds(float logit) const {
    if (bin_of(logit) != bin) return false;
    const uint32_t key = order_key(logit);
    return key >= low && key <= high;
  }
};

template <int kCtas>
class Row {
  using Cta = Team<kCtas>;
  static_assert(kWarps == kWarp && kThreads / kCtas % kWarp == 0, "a lane for each warp");

 public:
  // A slice: ids [begin, begin + count)
  __device__ Row(Shared& shared, int begin, int count)
      : shared_(shared), begin_(begin), count_(count) {}

  // The first token of the row, the smallest key of a token that is not banned, and whether there
  // is a NaN or +inf.
  struct Extremes {
    Item best;
    uint32_t least;
    bool bad;
    __device__ float largest() const { return from_order_key(key_of(best)); }
  };
  // values: [count] logits of the slice, in shared or in global memory; from now on they are those
  // of the row. copy: they are copied there at the same time and read there afterwards; null: they
  // are not.
  __device__ Extremes extremes(const float* values, float* copy) {
    Extremes mine{0, ~0u, false};
#pragma unroll 4
    for (int i = threadIdx.x; i < count_; i += kThreads) {
      const float logit = values[i];
      if (copy != nullptr) copy[i] = logit;
      const uint32_t key = order_key(logit);
      mine.bad |= !(logit < INFINITY);
      if (key == 0) continue;
      mine.best = max(mine.best, item_of(key, begin_ + i));
      mine.least = min(mine.least, key);
    }
    values_ = copy != nullptr ? copy : values;
    return all_extremes(mine);
  }

  // Divides the row into bins. Then positions can be searched with find().
  __device__ void divide(const Sizes& sizes, const Extremes& of) {
    sizes_ = sizes;
    const float half_range = 0.5f * of.largest() - 0.5f * from_order_key(of.least);
    const double depth =
        sizes.ones ? INFINITY : 0.5 * kExp2Steps * sizes.weights.bits / sizes.weights.steps;
    interval_ = {.half_largest = 0.5f * of.largest(),
                 .bins_per_half = kBins / fminf(half_range, static_cast<float>(depth))};
    histogram([this](float logit) { return interval_.bin_of(logit); }, shared_.first);
  }
  // Of all tokens of the row that have a size; after divide().
  __device__ Bin total() const {
    Bin sum{};
    for (int b = threadIdx.x % kWarp; b < kBins; b += kWarp)
      sum.mass += shared_.first[b].mass, sum.count += shared_.first[b].count;
#pragma unroll 1
    for (int step = kWarp / 2; step > 0; step /= 2) {
      sum.mass += __shfl_xor_sync(~0u, sum.mass, step);
      sum.count += __shfl_xor_sync(~0u, sum.count, step);
    }
    return sum;
  }

  // The token at `position` of the cumulative counts or masses of the row, which is below their
  // total.
  __device__ Found find(uint64_t position, bool by_count, bool want_id) {
    Chosen at = choose(shared_.first, position, by_count, {});
    interval_.bin = at.bin, interval_.low = 1, interval_.high = ~0u;
    if (at.inside.count > kListed) {
      narrow_interval();
      while (at.inside.count > kListed && interval_.low < interval_.high) {
        const int width = 32 - __clz(static_cast<int>(interval_.high - interval_.low));
        const int shift = max(width - kBinBits, 0);
        histogram(
            [this, shift](float logit) {
              return interval_.holds(logit)
                         ? static_cast<int>((interval_.high - order_key(logit)) >> shift)
                         : -1;
            },
            shared_.further);
        at = choose(shared_.further, position, by_count, at.before);
        interval_.high -= static_cast<uint32_t>(at.bin) << shift;
        interval_.low = max(interval_.low, interval_.high - min(interval_.high, (1u << shift) - 1));
      }
      if (at.inside.count > kListed) return find_tie(position, by_count, want_id, at.before);
    }
    const int n = gather([this](float logit, int) { return interval_.holds(logit); });
    return find_listed(n, position, by_count, at.before);
  }

  // Lists the first tokens of the row up to `last` in shared.top, in order; returns their number.
  __device__ int list_top(const Found& last) {
    const int n = gather([&](float logit, int id) {
      return order_key(logit) != 0 && item_of(order_key(logit), id) >= last.item;
    });
    if (thread() < n) {
      const Item mine = shared_.listed[threadIdx.x];
      int rank = 0;
      for (int i = 0; i < n; ++i) rank += shared_.listed[i] > mine ? 1 : 0;
      shared_.top[rank] = mine;
    }
    __syncthreads();
    return n;
  }

  // Mass of all tokens.
  __device__ uint64_t mass(const Weights& weights) {
    uint64_t sum = 0;
#pragma unroll 2
    for (int i = threadIdx.x; i < count_; i += kThreads)
      sum += weights.of(values_[i], shared_.exp2_table);
#pragma unroll 1
    for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (threadIdx.x % kWarp == 0) shared_.wide[threadIdx.x / kWarp] = sum;
    __syncthreads();
    Exchange& exchange = next_exchange();
    if (threadIdx.x < kWarp) {
      sum = shared_.wide[threadIdx.x];
#pragma unroll 1
      for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
      if (threadIdx.x == 0) exchange.wide[0] = sum;
    }
    Cta::sync();
    sum = of_ctas(&exchange.wide[0], uint64_t{0});
#pragma unroll
    for (int step = 1; step < kCtas; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    return __shfl_sync(~0u, sum, 0);
  }

 private:
  static __device__ int thread() {
    return static_cast<int>(threadIdx.x);
  }
  static __device__ int lane() {
    return thread() % kWarp;
  }

  // In lane r of every warp what CTA r of the team has there, in the lanes without a CTA `none`.
  template <class T>
  __device__ T of_ctas(const T* mine, T none) const {
    return lane() < kCtas ? Cta::load(mine, lane()) : none;
  }

  __device__ Exchange& next_exchange() {
    flip_ ^= 1;
    return shared_.exchange[flip_];
  }

  __device__ Extremes all_extremes(Extremes mine) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    Exchange& exchange = next_exchange();
    const auto over_warp = [&] {
      const uint32_t key = __reduce_max_sync(~0u, key_of(mine.best));
      const auto id = static_cast<uint32_t>(mine.best);  // its complement
      const uint32_t lowest = __reduce_max_sync(~0u, key_of(mine.best) == key ? id : 0);
      mine.best = static_cast<Item>(key) << 32 | lowest;
      mine.least = __reduce_min_sync(~0u, mine.least);
    };
    over_warp();
    if (lane == 0) shared_.wide[warp] = mine.best, shared_.narrow[warp] = mine.least;
    mine.bad = __syncthreads_or(mine.bad) != 0;
    if (warp == 0) {
      mine.best = shared_.wide[lane], mine.least = shared_.narrow[lane];
      over_warp();
      if (lane == 0) {
        exchange.wide[0] = mine.best;
        exchange.narrow[0] = mine.least;
        exchange.narrow[1] = mine.bad ? 1 : 0;
      }
    }
    Cta::sync();
    mine.best = of_ctas(&exchange.wide[0], Item{0});
    mine.least = of_ctas(&exchange.narrow[0], ~0u);
    mine.bad = __any_sync(~0u, of_ctas(&exchange.narrow[1], 0u) != 0);
    over_warp();
    return mine;
  }

  // out[b]: all tokens of the row for which bin_of(logit) is b; a negative number is no bin.
  template <class BinOf>
  __device__ void histogram(const BinOf& bin_of, Bin* out) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll 4
    for (int i = threadIdx.x; i < 3 * kBins * kWarp; i += kThreads) shared_.low[0][i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count_; i += kThreads) {
      const float logit = values_[i];
      const int bin = bin_of(logit);
      if (bin < 0) continue;
      const uint64_t size = sizes_.of(logit, shared_);
      if (size == 0) continue;
      const auto low = static_cast<uint32_t>(size);
      const uint32_t before = atomicAdd(&shared_.low[bin][lane], low);
      const uint32_t carry = before > ~low ? 1 : 0;
      atomicAdd(&shared_.high[bin][lane], static_cast<uint32_t>(size >> 32) + carry);
      atomicAdd(&shared_.count[bin][lane], 1u);
    }
    __syncthreads();
    Exchange& exchange = next_exchange();
    if (threadIdx.x < kBins) {
      const int bin = threadIdx.x;
      Bin sum{};
#pragma unroll 4
      for (int c = 0; c < kWarp; ++c) {
        const int column = (c + lane) % kWarp;
        sum.mass +=
            static_cast<uint64_t>(shared_.high[bin][column]) << 32 | shared_.low[bin][column];
        sum.count += shared_.count[bin][column];
      }
      exchange.wide[bin] = sum.mass;
      exchange.narrow[bin] = sum.count;
    }
    Cta::sync();
    if (threadIdx.x < kBins) {
      Bin sum{};
#pragma unroll
      for (int r = 0; r < kCtas; ++r) {
        sum.mass += Cta::load(&exchange.wide[threadIdx.x], r);
        sum.count += Cta::load(&exchange.narrow[threadIdx.x], r);
      }
      out[threadIdx.x] = sum;
    }
    __syncthreads();
  }

  // The bin in which `position` lies; `before` is before the first bin.
  __device__ Chosen choose(const Bin* bins, uint64_t position, bool by_count, Bin before) {
    constexpr int kEach = kBins / kWarp;
    if (threadIdx.x < kWarp) {
      const int first = kEach * static_cast<int>(threadIdx.x);
      Bin sum{};
      for (int j = 0; j < kEach; ++j)
        sum.mass += bins[first + j].mass, sum.count += bins[first + j].count;
      Bin through = sum;
#pragma unroll 1
      for (int step = 1; step < kWarp; step *= 2) {
        const uint64_t mass = __shfl_up_sync(~0u, through.mass, step);
        const uint32_t count = __shfl_up_sync(~0u, through.count, step);
        if (thread() >= step) through.mass += mass, through.count += count;
      }
      before.mass += through.mass - sum.mass, before.count += through.count - sum.count;
      for (int j = 0; j < kEach; ++j) {
        const Bin bin = bins[first + j];
        const uint64_t start = by_count ? before.count : before.mass;
        if (position >= start && position - start < (by_count ? bin.count : bin.mass))
          shared_.chosen = {first + j, before, bin};
        before.mass += bin.mass, before.count += bin.count;
      }
    }
    __syncthreads();
    const Chosen chosen = shared_.chosen;
    __syncthreads();
    return chosen;
  }

  // Moves the limits of the interval to the keys of its first and last token.
  __device__ void narrow_interval() {
    Extremes mine{0, ~0u, false};
#pragma unroll 1
    for (int i = threadIdx.x; i < count_; i += kThreads) {
      const float logit = values_[i];
      if (!interval_.holds(logit) || sizes_.of(logit, shared_) == 0) continue;
      const uint32_t key = order_key(logit);
      mine.best = max(mine.best, item_of(key, 0));
      mine.least = min(mine.least, key);
    }
    const Extremes all = all_extremes(mine);
    interval_.high = key_of(all.best), interval_.low = all.least;
  }

  // Collects the items of the row's tokens for which take(logit, id) holds and which have a size,
  // in any order: at most kListed.
  template <class Take>
  __device__ int gather(const Take& take) {
    Exchange& exchange = next_exchange();
    if (threadIdx.x == 0) exchange.narrow[0] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count_; i += kThreads) {
      const float logit = values_[i];
      if (!take(logit, begin_ + i) || sizes_.of(logit, shared_) == 0) continue;
      exchange.wide[atomicAdd(&exchange.narrow[0], 1u)] = item_of(order_key(logit), begin_ + i);
    }
    Cta::sync();
    constexpr int kPerCta = kThreads / kCtas;
    const int from = thread() / kPerCta;  // one for all lanes of a warp
    const uint32_t n = of_ctas(&exchange.narrow[0], 0u);
    const uint32_t before = __reduce_add_sync(~0u, lane() < from ? n : 0),
                   mine = __shfl_sync(~0u, n, from);
    for (uint32_t i = threadIdx.x % kPerCta; i < mine; i += kPerCta)
      shared_.listed[before + i] = Cta::load(&exchange.wide[i], from);
    __syncthreads();
    return static_cast<int>(__reduce_add_sync(~0u, n));
  }

  // The token at `position` among the first n of shared.listed, which come after `before`.
  __device__ Found find_listed(int n, uint64_t position, bool by_count, Bin before) {
    constexpr int kShare = kThreads / kListed;  // threads of a token
    if (thread() < n)
      shared_.sizes[threadIdx.x] =
          sizes_.of(from_order_key(key_of(shared_.listed[threadIdx.x])), shared_);
    __syncthreads();
    const int mine = thread() / kShare;
    const Item item = mine < n ? shared_.listed[mine] : ~Item{0};
    Bin larger{};
#pragma unroll 2
    for (int i = thread() % kShare; i < n; i += kShare) {
      if (shared_.listed[i] <= item) continue;
      larger.mass += shared_.sizes[i];
      ++larger.count;
    }
    for (int step = 1; step < kShare; step *= 2) {
      larger.mass += __shfl_xor_sync(~0u, larger.mass, step);
      larger.count += __shfl_xor_sync(~0u, larger.count, step);
    }
    before.mass += larger.mass, before.count += larger.count;
    const uint64_t start = by_count ? before.count : before.mass;
    if (mine < n && thread() % kShare == 0 && position >= start &&
        position - start < (by_count ? 1 : shared_.sizes[mine])) {
      shared_.found = {item, before.mass + shared_.sizes[mine]};
    }
    __syncthreads();
    const Found found = shared_.found;
    __syncthreads();
    return found;
  }

  // The same when all tokens of the interval have one key: by division, in ascending id.
  __device__ Found find_tie(uint64_t position, bool by_count, bool want_id, Bin before) {
    const uint32_t key = interval_.high;
    const uint64_t size = sizes_.of(from_order_key(key), shared_);
    const uint64_t tie = by_count ? position - before.count : (position - before.mass) / size;
    const int id = want_id ? nth_of_key(key, static_cast<uint32_t>(tie)) : -1;
    return {item_of(key, id), before.mass + (tie + 1) * size};
  }

  // The id of token n, in ascending id, of those with this key.
  __device__ int nth_of_key(uint32_t key, uint32_t n) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const int stretch = static_cast<int>(align_up(ceil_div(count_, kWarps), kWarp));
    const int begin = warp * stretch, end = min(begin + stretch, count_);
    const auto equal = [&](int i) {
      return __ballot_sync(~0u, i + lane < end && order_key(values_[i + lane]) == key);
    };
    uint32_t mine = 0;
    for (int i = begin; i < end; i += kWarp) mine += __popc(equal(i));
    if (lane == 0) shared_.narrow[warp] = mine;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += shared_.narrow[w];
      all += shared_.narrow[w];
    }
    Exchange& counts = next_exchange();
    if (threadIdx.x == 0) counts.narrow[0] = all;
    Cta::sync();
#pragma unroll
    for (int r = 0; r < kCtas; ++r)
      if (r < Cta::rank()) before += Cta::load(&counts.narrow[0], r);
    // One warp of the team finds it.
    Exchange& answer = next_exchange();
    if (threadIdx.x == 0) answer.narrow[0] = ~0u;
    __syncthreads();
    if (n >= before && n - before < mine) {
      uint32_t left = n - before;
      for (int i = begin; i < end; i += kWarp) {
        const uint32_t here = equal(i);
        const auto number = static_cast<uint32_t>(__popc(here & ((1u << lane) - 1)));
        if ((here >> lane & 1) != 0 && number == left)
          answer.narrow[0] = static_cast<uint32_t>(begin_ + i + lane);
        const auto found = static_cast<uint32_t>(__popc(here));
        if (left < found) break;
        left -= found;
      }
    }
    Cta::sync();
    uint32_t id = ~0u;
#pragma unroll
    for (int r = 0; r < kCtas; ++r) id = min(id, Cta::load(&answer.narrow[0], r));
    return static_cast<int>(id);
  }

  Shared& shared_;
  const float* values_ = nullptr;
  const int begin_, count_;
  Sizes sizes_{};
  Interval interval_{};
  int flip_ = 0;
};

}  // namespace dsv4::sampling
