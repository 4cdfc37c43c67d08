// Division of a row into bins of logits, with the mass and the number of tokens of each.
//
// Every thread adds its tokens to the columns of its CTA; tokens of one bin that follow each other
// are added together first, so that rows of few values cost no more. Masses are integers (mass.h),
// so no order of additions is seen in the result. Bins stay in their CTA; the sums of 32 bins each
// are exchanged, and later the bins of one such group (search.cuh).

#pragma once

#include "dsv4/ops/model/sample/slice.cuh"

namespace dsv4::sample_kernel {

// Which tokens are divided, and how: the whole row by logit into bins of equal width, or the tokens
// of one such bin with order keys in [low, high] by key.
template <int kBins>
struct Interval {
  float half_largest, bins_per_half;  // halves: a difference of two f32 may overflow
  int bin;                            // of the first division
  uint32_t low, high;
  int shift;

  __device__ int first_bin(float logit) const {
    const float below = __fsub_rn(half_largest, __fmul_rn(0.5f, logit));
    return min(__float2int_rz(__fmul_rn(below, bins_per_half)), kBins - 1);  // NaN is 0
  }
  // Most tokens are in another bin, which costs less to see than their keys. low > 0, so no banned
  // token is in an interval.
  __device__ bool holds(float logit) const {
    if (first_bin(logit) != bin) return false;
    const uint32_t key = order_key(logit);
    return key >= low && key <= high;
  }
  // -1: none
  __device__ int further_bin(float logit) const {
    return holds(logit) ? static_cast<int>((high - order_key(logit)) >> shift) : -1;
  }
};

// Tokens of a CTA of a cluster.
inline constexpr int64_t kMaxSlice = 1 << 14;

template <int kCtas>
class Histogram {
  using T = Table<kCtas>;

 public:
  __device__ Histogram(Shared<kCtas>& shared, Team<kCtas>& team) : shared_(shared), team_(team) {}

  // All threads; before the first division, and again only if one has been made.
  __device__ void clear() {
    if (clear_) return;
    auto* const words = reinterpret_cast<uint4*>(shared_.words);
    constexpr int kQuads = sizeof(shared_.words) / sizeof(uint4);
#pragma unroll 4
    for (int i = threadIdx.x; i < kQuads; i += kThreads) words[i] = {0, 0, 0, 0};
    clear_ = true;
  }

  // Afterwards shared.bin(further, i) has those of this CTA, and shared.groups and shared.starts
  // have the groups of the row and what comes before them; `before` comes before the first.
  template <class BinOf>
  __device__ void divide(const Slice<kCtas>& slice, const Sizes& sizes, const BinOf& bin_of,
                         bool further, const Bin& before) {
    clear();
    __syncthreads();
    Run run{-1, {0, 0}};
    slice.for_each_run([&](const auto& logit, int) {
      constexpr int kRun = Slice<kCtas>::kRun;
      int bin[kRun], any = -1;
      uint64_t size[kRun];
#pragma unroll
      for (int j = 0; j < kRun; ++j) bin[j] = bin_of(logit[j]), any = max(any, bin[j]);
      if (any < 0) return;
#pragma unroll
      for (int j = 0; j < kRun; ++j) size[j] = sizes.of(logit[j], shared_.exp2_table);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        if (bin[j] < 0 || size[j] == 0) continue;
        if (bin[j] != run.bin) {
          add(run, sizes.ones);
          run = {bin[j], {0, 0}};
        }
        run.sum.add({size[j], 1});
      }
    });
    add(run, sizes.ones);
    clear_ = false;
    __syncthreads();
    add_columns(further, sizes.ones);
    exchange_groups(further, before);
    __syncthreads();
  }

 private:
  // Tokens of one bin, from one thread.
  struct Run {
    int bin;
    Bin sum;
  };
  // A cluster adds masses in pieces that no sum overflows, so that no addition waits for a carry:
  // 20 bits, 20 bits, the rest with the count above it. A column has at most 2^12 tokens
  // (kMaxSlice) of masses of at most 46 bits.
  static constexpr bool kPieces = kCtas > 1;
  static constexpr int kPiece = kPieces ? 20 : 32, kCountShift = kPieces ? 19 : 0;

  __device__ void add(const Run& run, bool ones) {
    if (run.bin < 0) return;
    constexpr int kWords = T::kBins * T::kColumns;
    auto* const word = reinterpret_cast<uint32_t*>(shared_.words) + T::kColumns * run.bin +
                       threadIdx.x % T::kColumns;
    const uint64_t mass = ones ? 0 : run.sum.mass;
    const uint32_t count = run.sum.count << kCountShift;
    if constexpr (kPieces) {
      constexpr uint32_t kMask = (1u << kPiece) - 1;
      atomicAdd(word + 2 * kWords, static_cast<uint32_t>(mass >> 2 * kPiece) | count);
      if (ones) return;
      atomicAdd(word, static_cast<uint32_t>(mass) & kMask);
      const uint32_t middle = static_cast<uint32_t>(mass >> kPiece) & kMask;
      if (middle != 0) atomicAdd(word + kWords, middle);
    } else {
      atomicAdd(word + 2 * kWords, count);
      if (ones) return;
      const auto low = static_cast<uint32_t>(mass);
      const uint32_t carry = atomicAdd(word, low) > ~low ? 1 : 0;
      atomicAdd(word + kWords, static_cast<uint32_t>(mass >> 32) + carry);
    }
  }
  __device__ Bin sum_of_columns(int bin) const {
    const auto add_up = [](const uint4& x) { return uint64_t{x.x} + x.y + x.z + x.w; };
    const uint4 last = shared_.words[2][bin];
    const uint64_t mass = add_up(shared_.words[0][bin]) + (add_up(shared_.words[1][bin]) << kPiece);
    if constexpr (kPieces) {
      constexpr uint32_t kMask = (1u << kCountShift) - 1;
      const uint64_t rest =
          add_up({last.x & kMask, last.y & kMask, last.z & kMask, last.w & kMask});
      const uint32_t count = (last.x >> kCountShift) + (last.y >> kCountShift) +
                             (last.z >> kCountShift) + (last.w >> kCountShift);
      return {mass + (rest << 2 * kPiece), count};
    } else {
      return {mass, static_cast<uint32_t>(add_up(last))};
    }
  }

  // A warp adds the columns of its groups of bins, and sends the sums of the groups.
  __device__ void add_columns(bool further, bool ones) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    constexpr int kEach = T::kGroups / kWarps;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int group = warp * kEach + j, b = group * kWarp + lane;
      Bin bin = sum_of_columns(b);
      if (ones) bin.mass = bin.count;
      shared_.set_bin(further, b, bin);
      const Bin sum{warp_sum(bin.mass), __reduce_add_sync(~0u, bin.count)};
      if (lane >= kCtas) continue;
      team_.send(kGroupSums, lane, &shared_.group_mass[Team<kCtas>::rank()][group], sum.mass);
      team_.send(kGroupSums, lane, &shared_.group_count[Team<kCtas>::rank()][group], sum.count);
    }
  }

  __device__ void exchange_groups(bool further, const Bin& before) {
    if constexpr (kCtas == 1) __syncthreads();  // sums of all warps
    if (threadIdx.x >= kWarp) return team_.pass(kGroupSums);
    if (threadIdx.x == 0) team_.expect(kGroupSums, kCtas * T::kGroups * 12);
    team_.wait_in_warp(kGroupSums);
    constexpr int kEach = T::kGroups > kWarp ? T::kGroups / kWarp : 1;
    const int first = kEach * static_cast<int>(threadIdx.x);
    Bin sums[kEach], all{0, 0};
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      sums[j] = {0, 0};
#pragma unroll
      for (int r = 0; r < kCtas; ++r)
        if (first < T::kGroups)
          sums[j].add({shared_.group_mass[r][first + j], shared_.group_count[r][first + j]});
      all.add(sums[j]);
    }
    const Bin through = warp_sum_through(all);
    Bin start{before.mass + through.mass - all.mass, before.count + through.count - all.count};
    if (first >= T::kGroups) return;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      shared_.groups[further ? 1 : 0][first + j] = sums[j];
      shared_.starts[further ? 1 : 0][first + j] = start;
      start.add(sums[j]);
    }
  }

  Shared<kCtas>& shared_;
  Team<kCtas>& team_;
  bool clear_ = false;
};

}  // namespace dsv4::sample_kernel
