// A row of scores stays in registers: warp w of a row has the blocks 1024 w .. 1024 w + 1023, lane
// l the blocks l, l + 32, ... of them. Scores of candidates are keys whose unsigned order is that
// of the scores; the cut is found bit by bit from the highest: 32 sums over the row.
//
// A row of up to 1024 blocks (131,072 keys in blocks of 128) is a warp of its own, four to a CTA;
// longer rows are a CTA of 8 or 32 warps.

#include "dsv4/ops/xattn_select/cuda/select.h"

#include <bit>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/ops/xattn_select/rule.h"

namespace dsv4::xattn_select_kernel::cuda {
namespace {

constexpr int kPer = 32;                // blocks of a lane
constexpr int kStretch = kPer * kWarp;  // blocks of a warp
constexpr int kRowsPerCta = 4;          // of rows of one warp

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
  // Of the warps before this one.
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
        first_(kWarps == 1 ? 0 : static_cast<int>(threadIdx.x) / kWarp * kStretch),
        mine_(min(max(rule.visible - first_, 0), kStretch)) {}

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
    for (int begin = 0; begin < kPer; begin += kTogether) {
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
      masses_[i] = u;
    });
    kept_mass_ = sum_(kept);
    return sum_(total);
  }

  __device__ uint64_t mass_from(uint32_t bound) {
    uint64_t all[4] = {};  // independent chains of additions
    each([&](int i) { all[i % 4] += keys_[i] >= bound ? masses_[i] : 0; });
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
    for (int bit = 31; bit >= 0; --bit) {
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

  __device__ Cut cut_by_count(int n) {
    if (n == 0) return {};
    uint32_t key = 0;
    for (int bit = 31; bit >= 0; --bit) {
      if (count_from(key | 1u << bit) >= n) key |= 1u << bit;
    }
    return {.key = key, .equal = n - count_from(key + 1)};
  }

  __device__ void store(const Cut& cut) {
    // How many equal keys, then how many chosen, lie in the warps before this one.
    int equal_here = 0;
    each([&](int i) {
      equal_here += __popc(__ballot_sync(~0u, cut.equal > 0 && keys_[i] == cut.key));
    });
    int equal_before = sum_.before(equal_here);
    unsigned chosen[kPer];
    int num_chosen = 0;
    const unsigned lanes_before = (1u << lane_) - 1;
    each([&](int i) {
      const bool is_equal = cut.equal > 0 && keys_[i] == cut.key;
      const unsigned equal = __ballot_sync(~0u, is_equal);
      const int j = i * kWarp + lane_;
      const bool take = keys_[i] > cut.key ||
                        (is_equal && equal_before + __popc(equal & lanes_before) < cut.equal) ||
                        (j < mine_ && rule_.keeps(first_ + j));
      equal_before += __popc(equal);
      chosen[i] = __ballot_sync(~0u, take);
      num_chosen += __popc(chosen[i]);
    });
    int* list = params_.indices + row_ * params_.k_blocks;
    int at = sum_.before(num_chosen);
    each([&](int i) {
      if ((chosen[i] >> lane_ & 1) != 0) {
        list[at + __popc(chosen[i] & lanes_before)] = first_ + i * kWarp + lane_;
      }
      at += __popc(chosen[i]);
    });
    const auto count = static_cast<int>(sum_(lane_ == 0 ? static_cast<uint64_t>(num_chosen) : 0));
    const int thread = kWarps == 1 ? lane_ : static_cast<int>(threadIdx.x);
    for (int j = count + thread; j < params_.k_blocks; j += kWarps * kWarp) list[j] = -1;
    if (thread == 0) params_.counts[row_] = count;
  }

  const Params& params_;
  const RowRule rule_;
  const int64_t row_;
  const int lane_, first_, mine_;  // blocks first_ .. first_ + mine_ - 1 are this warp's
  uint32_t keys_[kPer];
  uint64_t masses_[kPer];
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
  if (args.sums.dim(3) > 32 * kStretch) return "more than 32768 key blocks";
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
  if (params.k_blocks <= kStretch) {
    start(select_kernel<1>, kRowsPerCta, kRowsPerCta * kWarp);
  } else if (params.k_blocks <= 8 * kStretch) {
    start(select_kernel<8>, 1, 8 * kWarp);
  } else {
    start(select_kernel<32>, 1, 32 * kWarp);
  }
}

}  // namespace dsv4::xattn_select_kernel::cuda
