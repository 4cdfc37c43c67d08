// One row of sample.h on a device: what passes over all of its values find, and an exact search for
// the token at a position of the cumulative masses, without sorting.
//
// Tokens are ranked by an order key (larger first) and then by id. The row is divided into bins by
// logit (histogram.cuh), and the sums of the bins before it name the bin in which a position lies.
// The tokens of that bin are sent to all CTAs of the team and compared all with all, each CTA a
// part of them; a bin with more than 512 is divided further, by the bits of the order key, and
// tokens of equal key are counted in the order of their ids.
//
// All CTAs of a team draw the same conclusions from the same exchanged numbers, so all threads take
// the same branches around a hop.

#pragma once

#include "dsv4/base/rng.h"
#include "dsv4/ops/model/sample/adjust.h"
#include "dsv4/ops/model/sample/histogram.cuh"

namespace dsv4::sample_kernel {

template <int kCtas>
class Row {
  using T = Table<kCtas>;
  using Chosen = typename Shared<kCtas>::Chosen;

 public:
  using Values = typename Shared<kCtas>::WarpValue;

  __device__ Row(Shared<kCtas>& shared, Team<kCtas>& team, const Slice<kCtas>& slice)
      : shared_(shared), team_(team), slice_(slice), histogram_(shared, team) {}

  // Before the first division, any time.
  __device__ void prepare() { histogram_.clear(); }
  // For teams of one CTA, whose values are in global memory.
  __device__ void use(const float* values) { slice_.values = values; }

  // The first token of the row, the smallest key of a token that is not banned, and whether there
  // is a NaN or +inf.
  struct Extremes {
    Item best;
    uint32_t least;
    bool bad;

    __device__ float largest() const { return from_order_key(key_of(best)); }
  };
  __device__ Extremes extremes() {
    return extremes_of([](float logit) { return logit > -INFINITY; });
  }

  // Masses of all tokens as given, and of the kept ones as they are drawn. By warps; the next
  // exchange but one overwrites them.
  struct Wanted {
    bool given, drawn;
    Weights given_weights, drawn_weights;
    Item last;  // of the kept tokens; 0: all
  };
  __device__ const Values* masses(const Wanted& wanted) {
    uint64_t given = 0, drawn = 0;
    slice_.for_each([&](float logit, int id) {
      if (wanted.given) given += wanted.given_weights.of(logit, shared_.exp2_table);
      if (wanted.drawn) drawn += drawn_size(wanted, logit, id);
    });
    return exchange({warp_sum(drawn), warp_sum(given)});
  }
  // The sum over all warps of the team.
  __device__ Values sum_of(const Values* values) const {
    Values sum{0, 0};
#pragma unroll
    for (int i = lane(); i < kCtas * kWarps; i += kWarp) sum.a += values[i].a, sum.b += values[i].b;
    return {warp_sum(sum.a), warp_sum(sum.b)};
  }
  // The id at `position` of the drawn masses, in ascending id, in the one warp that has it; -1 in
  // all others.
  __device__ int draw(const Wanted& wanted, const Values* values, uint64_t position) const {
    const int mine = rank() * kWarps + warp();
    uint64_t before = 0;
#pragma unroll
    for (int i = lane(); i < kCtas * kWarps; i += kWarp)
      if (i < mine) before += values[i].a;
    before = warp_sum(before);
    if (position < before || position - before >= values[mine].a) return -1;
    return slice_.locate(position - before,
                         [&](float logit, int id) { return drawn_size(wanted, logit, id); });
  }

  // Divides the row into bins. Then positions can be searched with find().
  __device__ void divide(const Sizes& sizes, const Extremes& of) {
    sizes_ = sizes;
    const float half_range = 0.5f * of.largest() - 0.5f * from_order_key(of.least);
    const double depth =
        sizes.ones ? INFINITY : 0.5 * kExp2Steps * sizes.weights.bits / sizes.weights.steps;
    interval_ = {.half_largest = 0.5f * of.largest(),
                 .bins_per_half = T::kBins / fminf(half_range, static_cast<float>(depth))};
    divide_bins(false, {0, 0});
  }
  // Size and number of all tokens of the row that have a size; after divide().
  __device__ Bin total() const {
    Bin sum = shared_.starts[0][T::kGroups - 1];
    sum.add(shared_.groups[0][T::kGroups - 1]);
    return sum;
  }

  // The token at `position` of the cumulative counts or masses of the row, which is below their
  // total.
  __device__ Found find(uint64_t position, bool by_count) {
    Chosen at{};
    bool further = false;
    while (true) {
      at = choose(further, position, by_count);
      if (further) {
        interval_.high -= static_cast<uint32_t>(at.bin) << interval_.shift;
        interval_.low =
            max(interval_.low, interval_.high - min(interval_.high, (1u << interval_.shift) - 1));
      } else {
        interval_.bin = at.bin, interval_.low = 1, interval_.high = ~0u;
      }
      if (at.inside.count <= kListed) break;
      if (!further) narrow_interval();
      if (interval_.low == interval_.high) break;
      const int width = 32 - __clz(static_cast<int>(interval_.high - interval_.low));
      interval_.shift = max(width - T::kBinBits, 0);
      further = true;
      divide_bins(true, at.before);
    }
    if (at.inside.count > kListed) {
      find_tie(position, by_count, at.before);
    } else {
      list(at);
      find_listed(static_cast<int>(at.inside.count), position, by_count, at.before);
    }
    team_.wait(kFound);
    const Found found = shared_.found;
    __syncthreads();  // nothing of this search is read any more
    return found;
  }

  // Lists the first n <= 20 tokens of the row, up to `last`, in shared.top of the first CTA.
  __device__ void list_top(Item last, int n) {
    if (rank() == 0 && thread() == 0)
      team_.expect(kTop, static_cast<uint32_t>(n) * static_cast<uint32_t>(sizeof(Item)));
    slice_.for_each([&](float logit, int id) {
      const uint32_t key = order_key(logit);
      if (key == 0 || item_of(key, id) < last) return;
      const uint32_t slot = atomicAdd(&shared_.top_taken, 1u);
      team_.send(kTop, 0, &shared_.top_sent[rank() * kMaxTopLogprobs + static_cast<int>(slot)],
                 item_of(key, id));
    });
    if (rank() != 0) return team_.pass(kTop);
    team_.wait(kTop);
    if (thread() < kCtas * kMaxTopLogprobs) {
      const Item mine = shared_.top_sent[thread()];
      int before = 0;
      for (const Item other : shared_.top_sent) before += other > mine ? 1 : 0;
      if (mine != 0) shared_.top[before] = mine;
    }
    __syncthreads();
  }

 private:
  static __device__ int thread() {
    return static_cast<int>(threadIdx.x);
  }
  static __device__ int lane() {
    return thread() % kWarp;
  }
  static __device__ int warp() {
    return thread() / kWarp;
  }
  static __device__ int rank() {
    return Team<kCtas>::rank();
  }

  // What every warp of the team has, in the order of ranks and warps. The next call but one
  // overwrites it.
  __device__ const Values* exchange(const Values& mine) {
    const int buffer = values_buffer_, hop = kWarpValues + buffer;
    values_buffer_ ^= 1;
    Values* const values = shared_.warp_values[buffer];
    Values* const place = values + rank() * kWarps + warp();
    if (thread() == 0) team_.expect(hop, kCtas * kWarps * sizeof(Values));
    if (lane() < kCtas) {
      team_.send(hop, lane(), &place->a, mine.a);
      team_.send(hop, lane(), &place->b, mine.b);
    }
    team_.wait(hop);
    return values;
  }

  // Extremes of the logits that `take` accepts.
  template <class Take>
  __device__ Extremes extremes_of(const Take& take) {
    float largest = -INFINITY, least = INFINITY;
    int first = 0;
    bool bad = false;
    slice_.for_each([&](float logit, int id) {
      // Without branches, which would keep a thread from computing several side by side.
      const bool taken = take(logit), larger = taken && logit > largest;
      bad |= !(logit < INFINITY);
      largest = larger ? logit : largest, first = larger ? id : first;
      least = taken ? fminf(least, logit) : least;
    });
    const bool any = largest > -INFINITY;
    Extremes mine{any ? item_of(order_key(largest), first) : 0, any ? order_key(least) : ~0u, bad};
    const auto over_warp = [&] {
      const uint32_t key = __reduce_max_sync(~0u, key_of(mine.best));
      const auto id = static_cast<uint32_t>(mine.best);  // its complement
      const uint32_t lowest = __reduce_max_sync(~0u, key_of(mine.best) == key ? id : 0);
      mine.best = static_cast<Item>(key) << 32 | lowest;
      mine.least = __reduce_min_sync(~0u, mine.least);
      mine.bad = __any_sync(~0u, mine.bad);
    };
    over_warp();
    const Values* values =
        exchange({mine.best, static_cast<uint64_t>(mine.least) << 32 | (mine.bad ? 1 : 0)});
#pragma unroll
    for (int i = lane(); i < kCtas * kWarps; i += kWarp) {
      mine.best = max(mine.best, values[i].a);
      mine.least = min(mine.least, static_cast<uint32_t>(values[i].b >> 32));
      mine.bad |= (values[i].b & 1) != 0;
    }
    over_warp();
    return mine;
  }

  __device__ uint64_t drawn_size(const Wanted& wanted, float logit, int id) const {
    if (wanted.last != 0 && item_of(order_key(logit), id) < wanted.last) return 0;
    return wanted.drawn_weights.of(logit, shared_.exp2_table);
  }

  __device__ void divide_bins(bool further, const Bin& before) {
    histogram_.divide(
        slice_, sizes_,
        [this, further](float logit) {
          return further ? interval_.further_bin(logit) : interval_.first_bin(logit);
        },
        further, before);
  }

  // Moves the limits of the interval to the keys of its first and last token.
  __device__ void narrow_interval() {
    const Extremes all = extremes_of([this](float logit) {
      return interval_.holds(logit) && sizes_.of(logit, shared_.exp2_table) != 0;
    });
    interval_.high = key_of(all.best), interval_.low = all.least;
  }

  // The bin in which `position` lies. The first warp finds its group, exchanges the bins of it,
  // and finds the bin.
  __device__ Chosen choose(bool further, uint64_t position, bool by_count) {
    const int buffer = bins_buffer_, hop = kBinSums + buffer;
    bins_buffer_ ^= 1;
    if (warp() == 0) {
      if (thread() == 0) team_.expect(hop, kCtas * kWarp * 12), shared_.num_own = 0;
      const int group = choose_group(further, position, by_count);
      const Bin mine = shared_.bin(further, group * kWarp + lane());
#pragma unroll
      for (int r = 0; r < kCtas; ++r) {
        team_.send(hop, r, &shared_.bin_mass[buffer][rank()][lane()], mine.mass);
        team_.send(hop, r, &shared_.bin_count[buffer][rank()][lane()], mine.count);
      }
      team_.wait_in_warp(hop);
      Bin sum{0, 0};
      uint32_t offset = 0;
#pragma unroll
      for (int r = 0; r < kCtas; ++r) {
        if (r == rank()) offset = sum.count;
        sum.add({shared_.bin_mass[buffer][r][lane()], shared_.bin_count[buffer][r][lane()]});
      }
      const Bin through = warp_sum_through(sum);
      Bin start = shared_.starts[further ? 1 : 0][group];
      start.add({through.mass - sum.mass, through.count - sum.count});
      if (holds(start, sum, position, by_count))
        shared_.chosen = {group * kWarp + lane(), start, sum, offset};
    } else {
      team_.pass(hop);
    }
    __syncthreads();
    return shared_.chosen;
  }

  // By one warp.
  __device__ int choose_group(bool further, uint64_t position, bool by_count) const {
    const Bin* const groups = shared_.groups[further ? 1 : 0];
    const Bin* const starts = shared_.starts[further ? 1 : 0];
    uint32_t found = 0;  // plus one
#pragma unroll
    for (int group = lane(); group < T::kGroups; group += kWarp)
      if (holds(starts[group], groups[group], position, by_count))
        found = static_cast<uint32_t>(group + 1);
    return static_cast<int>(__reduce_max_sync(~0u, found)) - 1;
  }
  static __device__ bool holds(const Bin& start, const Bin& bin, uint64_t position, bool by_count) {
    const uint64_t first = by_count ? start.count : start.mass;
    return position >= first && position - first < (by_count ? bin.count : bin.mass);
  }

  // Sends the tokens of the chosen bin to all CTAs, in any order.
  __device__ void list(const Chosen& at) {
    constexpr uint32_t kBytes = sizeof(Item) + sizeof(uint64_t);
    if (thread() == 0) team_.expect(kList, at.inside.count * kBytes);
    // Only the last bins have tokens without a size, unless min_p drops some.
    const bool all_count =
        sizes_.ones || (sizes_.weights.least <= 1 && interval_.bin < T::kBins - 2);
    slice_.for_each([&](float logit, int id) {
      if (!interval_.holds(logit)) return;
      if (!all_count && sizes_.of(logit, shared_.exp2_table) == 0) return;
      shared_.own()[atomicAdd(&shared_.num_own, 1u)] = item_of(order_key(logit), id);
    });
    __syncthreads();
    const int n = static_cast<int>(shared_.num_own);
    if (thread() < n)
      shared_.own_sizes()[thread()] =
          sizes_.of(from_order_key(key_of(shared_.own()[thread()])), shared_.exp2_table);
    __syncthreads();
    for (int i = thread(); i < n * kCtas; i += kThreads) {
      const int from = i / kCtas, to = static_cast<int>(at.offset) + from;
      team_.send(kList, i % kCtas, &shared_.listed[to], shared_.own()[from]);
      team_.send(kList, i % kCtas, &shared_.sizes[to], shared_.own_sizes()[from]);
    }
    team_.wait(kList);
  }

  // Sends the token at `position` among the n of shared.listed, which come after `before`. A CTA
  // compares every kCtas-th of them with all.
  __device__ void find_listed(int n, uint64_t position, bool by_count, const Bin& before) {
    constexpr int kShare = 16;  // threads of a token
    constexpr int kTokens = kThreads / kShare;
    if (thread() == 0) team_.expect(kFound, sizeof(Found));
    for (int first = 0; first < n; first += kTokens * kCtas) {
      const int mine = first + thread() / kShare * kCtas + rank();
      const Item item = mine < n ? shared_.listed[mine] : ~Item{0};
      Bin start = before;
      if (thread() % kShare != 0) start = {0, 0};
#pragma unroll 2
      for (int i = thread() % kShare; i < n; i += kShare)
        if (shared_.listed[i] > item) start.add({shared_.sizes[i], 1});
      for (int step = 1; step < kShare; step *= 2) {
        const uint64_t mass = __shfl_xor_sync(~0u, start.mass, step);
        const uint32_t count = __shfl_xor_sync(~0u, start.count, step);
        start.add({mass, count});
      }
      if (mine >= n || thread() % kShare != 0) continue;
      const uint64_t size = shared_.sizes[mine];
      if (holds(start, {size, 1}, position, by_count)) send_found({item, start.mass + size});
    }
  }

  __device__ void send_found(const Found& found) {
    for (int r = 0; r < kCtas; ++r) {
      team_.send(kFound, r, &shared_.found.item, found.item);
      team_.send(kFound, r, &shared_.found.mass_through, found.mass_through);
    }
  }

  // Finds the token where all tokens of the interval have one key: by division, in ascending id.
  __device__ void find_tie(uint64_t position, bool by_count, const Bin& before) {
    const uint32_t key = interval_.high;
    const uint64_t size = sizes_.of(from_order_key(key), shared_.exp2_table);
    const uint64_t tie = by_count ? position - before.count : (position - before.mass) / size;
    if (thread() == 0) team_.expect(kFound, sizeof(Found));
    send_nth_of_key(key, static_cast<uint32_t>(tie), before.mass + (tie + 1) * size);
  }

  // The token n, in ascending id, of those with this key. Warps own consecutive stretches.
  __device__ void send_nth_of_key(uint32_t key, uint32_t n, uint64_t through) {
    const int stretch = static_cast<int>(align_up(ceil_div(slice_.count, kWarps), kWarp));
    const int begin = warp() * stretch, end = min(begin + stretch, slice_.count);
    const auto equal = [&](int i) {
      return __ballot_sync(~0u, i + lane() < end && order_key(slice_.values[i + lane()]) == key);
    };
    uint32_t mine = 0;
    for (int i = begin; i < end; i += kWarp) mine += static_cast<uint32_t>(__popc(equal(i)));
    const Values* values = exchange({mine, 0});
    uint32_t before = 0;
    for (int i = lane(); i < rank() * kWarps + warp(); i += kWarp)
      before += static_cast<uint32_t>(values[i].a);
    before = __reduce_add_sync(~0u, before);
    if (n < before || n - before >= mine) return;
    uint32_t left = n - before;
    for (int i = begin; i < end; i += kWarp) {
      const uint32_t here = equal(i);
      const auto number = static_cast<uint32_t>(__popc(here & ((1u << lane()) - 1)));
      if ((here >> lane() & 1) != 0 && number == left)
        send_found({item_of(key, slice_.begin + i + lane()), through});
      const auto found = static_cast<uint32_t>(__popc(here));
      if (left < found) break;
      left -= found;
    }
  }

  Shared<kCtas>& shared_;
  Team<kCtas>& team_;
  Slice<kCtas> slice_;
  Histogram<kCtas> histogram_;
  Sizes sizes_{};
  Interval<T::kBins> interval_{};
  int values_buffer_ = 0, bins_buffer_ = 0;
};

}  // namespace dsv4::sample_kernel
