// A row of scores stays in registers: every warp of a row has up to 1024 adjacent blocks, lane l
// the blocks l, l + 32, ... of them. Scores of candidates are keys whose unsigned order is that of
// the scores; the cut is found bit by bit from the highest: 32 sums over the row. After half of the
// bits few candidates are left near the cut; where they are at most 32 and the row is one warp,
// every lane takes one of them, and the other sums are over one key per lane.
//
// A row of up to 1024 blocks (131,072 keys in blocks of 128) is a warp of its own, four to a CTA;
// longer rows are a CTA of 8 warps, or of 32 with 512 blocks each.

#include "dsv4/ops/xattn/select/xattn_select.h"

#include <bit>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/ops/xattn/select/rule.h"

namespace dsv4::xattn_select_kernel::cuda {
namespace {

constexpr int kRowsPerCta = 4;  // of rows of one warp
constexpr int kLowBits = 16;    // of a key, searched last

// Blocks of a lane, and whether it keeps their masses. 32 warps have 64 registers per thread.
template <int kWarps>
constexpr int kPer = kWarps < 32 ? 32 : 16;
template <int kWarps>
constexpr bool kKeepsMasses = kWarps < 32;
template <int kWarps>
constexpr int kStretch = kPer<kWarps>* kWarp;  // blocks of a warp

struct Params {
  const int *cu_q, *cu_kv;
  const int* prompt_lengths;  // or null
  const float* tau;           // or null
  const float* sums;
  int *counts, *indices;
  int64_t rows;  // of all sequences and heads
  int heads, q_blocks, k_blocks;
  bool causal;
  RowLimits limits;
};

// Sum over the warp of numbers below 2^62, in three parts that one instruction adds each.
__device__ inline uint64_t warp_sum(uint64_t x) {
  constexpr int kPart = 21;
  constexpr uint32_t kMask = (1u << kPart) - 1;
  const uint64_t low = __reduce_add_sync(~0u, static_cast<uint32_t>(x) & kMask);
  const uint64_t middle = __reduce_add_sync(~0u, static_cast<uint32_t>(x >> kPart) & kMask);
  const uint64_t high = __reduce_add_sync(~0u, static_cast<uint32_t>(x >> 2 * kPart));
  return low + (middle << kPart) + (high << 2 * kPart);
}

// Sums over the warps of a row. Every call takes the other buffer, so one barrier is enough.
template <int kWarps>
class RowSum {
 public:
  __device__ uint64_t operator()(uint64_t x) {
    x = warp_sum(x);
    if constexpr (kWarps == 1) {
      return x;
    } else {
      __shared__ uint64_t sums[2][kWarps];
      turn_ ^= 1;
      if (threadIdx.x % kWarp == 0) sums[turn_][threadIdx.x / kWarp] = x;
      __syncthreads();
      uint64_t all = 0;
      for (int w = 0; w < kWarps; ++w) all += sums[turn_][w];
      return all;
    }
  }
  // The sum over the warps before this one.
  __device__ int before(int x) {
    if constexpr (kWarps == 1) {
      return 0;
    } else {
      __shared__ int sums[2][kWarps];
      turn_ ^= 1;
      if (threadIdx.x % kWarp == 0) sums[turn_][threadIdx.x / kWarp] = x;
      __syncthreads();
      int all = 0;
      for (int w = 0; w < static_cast<int>(threadIdx.x) / kWarp; ++w) all += sums[turn_][w];
      return all;
    }
  }

 private:
  int turn_ = 0;
};

// Candidates of key above `key`, and the first `equal` of those with that key.
struct Cut {
  uint32_t key = ~0u;
  int equal = 0;
};

template <int kWarps>
class RowSelection {
 public:
  __device__ RowSelection(const Params& params, const RowRule& rule, int64_t row)
      : params_(params),
        rule_(rule),
        row_(row),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        first_(kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / kWarp * kStretch<kWarps>),
        mine_(min(max(rule.visible - first_, 0), kStretch<kWarps>)) {}

  __device__ void run(float tau) {
    const uint64_t total = load();
    Cut cut;
    if (rule_.dense) {
      cut = {.key = 0, .equal = 0};
    } else {
      const int kept = rule_.num_kept(), candidates = rule_.visible - kept;
      int by_mass = 0;
      if (params_.limits.top_k == 0) cut = cut_by_mass(needed_mass(tau, total), by_mass);
      const int n = num_taken(params_.limits, kept, candidates, by_mass);
      if (n != by_mass || params_.limits.top_k > 0) cut = cut_by_count(n);
    }
    store(cut);
  }

 private:
  // Key of a candidate: the bits of its score + 1; 0: not a candidate.
  __device__ static uint32_t key_of(float score) { return std::bit_cast<uint32_t>(score) + 1; }
  __device__ uint64_t mass_of(uint32_t key) const { return mass(std::bit_cast<float>(key - 1)); }
  // Calls visit(i) for the registers that hold visible blocks, and for some more; uniform in the
  // warp. Eight at a time, so that their loads and additions overlap.
  template <class Visit>
  __device__ void each(const Visit& visit) const {
    constexpr int kTogether = 8;
#pragma unroll
    for (int begin = 0; begin < kPer<kWarps>; begin += kTogether) {
      if (begin * kWarp >= mine_) break;
#pragma unroll
      for (int i = begin; i < begin + kTogether; ++i) visit(i);
    }
  }

  // Returns the mass of all visible blocks.
  __device__ uint64_t load() {
    const float* scores = params_.sums + row_ * params_.k_blocks + first_;
    uint64_t total = 0, kept = 0;
    each([&](int i) {
      const int j = i * kWarp + lane_;
      const bool there = j < mine_;
      const float score = there ? usable_score(scores[j]) : 0.f;
      const uint64_t u = mass(score);
      const bool keeps = there && rule_.keeps(first_ + j);
      total += u;
      kept += keeps ? u : 0;
      keys_[i] = there && (rule_.dense || !keeps) ? key_of(score) : 0;
      if constexpr (kKeepsMasses<kWarps>) masses_[i] = u;
    });
    kept_mass_ = sum_(kept);
    return sum_(total);
  }

  __device__ uint64_t mass_from(uint32_t bound) {
    uint64_t all[4] = {};  // independent chains of additions
    each([&](int i) {
      if (keys_[i] >= bound) {
        if constexpr (kKeepsMasses<kWarps>) {
          all[i % 4] += masses_[i];
        } else {
          all[i % 4] += mass_of(keys_[i]);
        }
      }
    });
    return sum_(all[0] + all[1] + (all[2] + all[3]));
  }
  __device__ int count_from(uint32_t bound) {
    int all = 0;
    each([&](int i) { all += keys_[i] >= bound ? 1 : 0; });
    return static_cast<int>(sum_(static_cast<uint64_t>(all)));
  }

  // n: how many candidates lie within the cut.
  __device__ Cut cut_by_mass(uint64_t need, int& n) {
    n = 0;
    if (kept_mass_ >= need) return {};
    const uint64_t rest = need - kept_mass_;
    uint32_t key = 0;  // the largest whose candidates from it on have the mass
    for (int bit = 31; bit >= kLowBits; --bit) {
      if (mass_from(key | 1u << bit) >= rest) key |= 1u << bit;
    }
    if constexpr (kWarps == 1) {
      Near near;
      if (find_near(key, near)) return cut_among(near, key, rest, n);
    }
    for (int bit = kLowBits - 1; bit >= 0; --bit) {
      if (mass_from(key | 1u << bit) >= rest) key |= 1u << bit;
    }
    if (key == 0) {  // all candidates are not enough
      n = count_from(1);
      return {.key = 0, .equal = 0};
    }
    const uint64_t above = mass_from(key + 1), each_equal = mass_of(key);
    const auto equal = static_cast<int>((rest - above + each_equal - 1) / each_equal);
    n = count_from(key + 1) + equal;
    return {.key = key, .equal = equal};
  }

  // The candidates whose keys agree with the cut in the high bits, one per lane (0: none), and
  // those with larger keys.
  struct Near {
    uint32_t key;
    int num_above;
    uint64_t mass_above;
  };

  // False: there are more than 32.
  __device__ bool find_near(uint32_t key, Near& near) {
    __shared__ uint32_t found[kRowsPerCta][kWarp];
    uint32_t* mine = found[threadIdx.x / kWarp];
    mine[lane_] = 0;
    __syncwarp();
    const uint32_t first = key == 0 ? 1 : key, last = key | ((1u << kLowBits) - 1);
    const unsigned lanes_before = (1u << lane_) - 1;
    int num = 0;
    near.num_above = 0;
    each([&](int i) {
      const bool is_near = first <= keys_[i] && keys_[i] <= last;
      const unsigned lanes = __ballot_sync(~0u, is_near);
      const int slot = num + __popc(lanes & lanes_before);
      if (is_near && slot < kWarp) mine[slot] = keys_[i];
      num += __popc(lanes);
      near.num_above += __popc(__ballot_sync(~0u, keys_[i] > last));
    });
    __syncwarp();
    near.key = mine[lane_];
    near.mass_above = mass_from(last + 1);
    return num <= kWarp;
  }

  // cut_by_mass() where the cut is among 32 candidates.
  __device__ Cut cut_among(const Near& near, uint32_t key, uint64_t rest, int& n) {
    const uint64_t own = near.key == 0 ? 0 : mass_of(near.key);
    const auto mass_at_least = [&](uint32_t bound) {
      return near.mass_above + warp_sum(near.key >= bound ? own : 0);
    };
    for (int bit = kLowBits - 1; bit >= 0; --bit) {
      if (mass_at_least(key | 1u << bit) >= rest) key |= 1u << bit;
    }
    n = near.num_above + __popc(__ballot_sync(~0u, near.key > key));
    if (key == 0) return {.key = 0, .equal = 0};
    const uint64_t above = mass_at_least(key + 1), each_equal = mass_of(key);
    const auto equal = static_cast<int>((rest - above + each_equal - 1) / each_equal);
    n += equal;
    return {.key = key, .equal = equal};
  }

  __device__ Cut cut_by_count(int n) {
    if (n == 0) return {};
    uint32_t key = 0;
    for (int bit = 31; bit >= 0; --bit) {
      if (count_from(key | 1u << bit) >= n) key |= 1u << bit;
    }
    return {.key = key, .equal = n - count_from(key + 1)};
  }

  __device__ void store(const Cut& cut) {
    int equal_before = 0, at = 0, count = 0;  // of the warps before this one; of the row
    if constexpr (kWarps > 1) {
      int equal = 0, chosen = 0;
      each([&](int i) {
        equal += __popc(__ballot_sync(~0u, cut.equal > 0 && keys_[i] == cut.key));
      });
      equal_before = sum_.before(equal);
      each_chosen(cut, equal_before, [&](int, unsigned lanes) { chosen += __popc(lanes); });
      at = sum_.before(chosen);
      count = static_cast<int>(sum_(lane_ == 0 ? static_cast<uint64_t>(chosen) : 0));
    }
    int* list = params_.indices + row_ * params_.k_blocks;
    each_chosen(cut, equal_before, [&](int i, unsigned lanes) {
      if ((lanes >> lane_ & 1) != 0) {
        list[at + __popc(lanes & ((1u << lane_) - 1))] = first_ + i * kWarp + lane_;
      }
      at += __popc(lanes);
    });
    if constexpr (kWarps == 1) count = at;
    const int thread = kWarps == 1 ? lane_ : static_cast<int>(threadIdx.x);
    for (int j = count + thread; j < params_.k_blocks; j += kWarps * kWarp) list[j] = -1;
    if (thread == 0) params_.counts[row_] = count;
  }

  // Calls visit(i, lanes whose block is listed); equal_before: keys equal to the cut's before them.
  template <class Visit>
  __device__ void each_chosen(const Cut& cut, int equal_before, const Visit& visit) const {
    each([&](int i) {
      const bool is_equal = cut.equal > 0 && keys_[i] == cut.key;
      const unsigned equal = __ballot_sync(~0u, is_equal);
      const int j = i * kWarp + lane_, rank = equal_before + __popc(equal & ((1u << lane_) - 1));
      const bool take = keys_[i] > cut.key || (is_equal && rank < cut.equal) ||
                        (j < mine_ && rule_.keeps(first_ + j));
      equal_before += __popc(equal);
      visit(i, __ballot_sync(~0u, take));
    });
  }

  const Params& params_;
  const RowRule rule_;
  const int64_t row_;
  const int lane_, first_, mine_;  // blocks first_ .. first_ + mine_ - 1 are this warp's
  uint32_t keys_[kPer<kWarps>];
  uint64_t masses_[kKeepsMasses<kWarps> ? kPer<kWarps> : 1];
  uint64_t kept_mass_ = 0;
  RowSum<kWarps> sum_;
};

template <int kWarps>
__global__ void __launch_bounds__(kWarps == 1 ? kRowsPerCta * kWarp : kWarps * kWarp)
    select_kernel(const __grid_constant__ Params params) {
  const int64_t row = kWarps == 1
                          ? static_cast<int64_t>(blockIdx.x) * kRowsPerCta + threadIdx.x / kWarp
                          : static_cast<int64_t>(blockIdx.x);
  if (row >= params.rows) return;
  const auto index = static_cast<int>(row / params.q_blocks / params.heads);
  const auto head = static_cast<int>(row / params.q_blocks % params.heads);
  const PrefillSequence s = prefill_sequence(params.cu_q, params.cu_kv, index, params.causal);
  const int prompt = params.prompt_lengths == nullptr ? s.keys : params.prompt_lengths[index];
  const RowRule rule = row_rule(params.limits, s, static_cast<int>(row % params.q_blocks), prompt);
  RowSelection<kWarps>(params, rule, row).run(params.tau == nullptr ? 0.f : params.tau[head]);
}

}  // namespace

const char* reject(const Context&, const XattnSelectArgs& args) {
  if (args.sums.dim(3) > 32 * kStretch<32>) return "more than 16384 key blocks";
  if (args.sums.numel() / std::max<int64_t>(args.sums.dim(3), 1) > INT32_MAX)
    return "more than 2^31 rows";
  return nullptr;
}

void run(const Context& context, const XattnSelectArgs& args) {
  const Params params{
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .prompt_lengths = args.prompt_lengths.empty() ? nullptr : args.prompt_lengths.as<int>(),
      .tau = args.tau.empty() ? nullptr : args.tau.as<float>(),
      .sums = args.sums.as<float>(),
      .counts = args.lists.counts.as<int>(),
      .indices = args.lists.indices.as<int>(),
      .rows = args.lists.counts.numel(),
      .heads = static_cast<int>(args.sums.dim(1)),
      .q_blocks = static_cast<int>(args.sums.dim(2)),
      .k_blocks = static_cast<int>(args.sums.dim(3)),
      .causal = args.batch.causal,
      .limits = row_limits(args),
  };
  const auto start = [&](auto* kernel, int64_t rows_per_cta, int threads) {
    launch(*context.device, "xattn_select", kernel,
           {.grid = ceil_div(params.rows, rows_per_cta), .block = threads}, params);
  };
  if (params.k_blocks <= kStretch<1>) {
    start(select_kernel<1>, kRowsPerCta, kRowsPerCta * kWarp);
  } else if (params.k_blocks <= 8 * kStretch<8>) {
    start(select_kernel<8>, 1, 8 * kWarp);
  } else {
    start(select_kernel<32>, 1, 32 * kWarp);
  }
}

}  // namespace dsv4::xattn_select_kernel::cuda
