#include "dsv4/ops/model/sparse_mla/sm90_fp8/plan.h"

#include <algorithm>
#include <iterator>

#include "dsv4/base/bits.h"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {
namespace {

// Microseconds, fitted to a sweep on an H100 (docs/kernels/sparse_mla.md, "Plan"): a CTA of `heads`
// heads takes `start` to start and end, `crowd` more when the GPU is full of such CTAs, `per_key`
// for each key, and `combine` to combine its partials.
struct CtaCost {
  int heads;
  double start, crowd, per_key, combine;
};
constexpr CtaCost kCtaCosts[] = {{8, 4.23, 1.36, 0.0238, 0.93},
                                 {16, 4.31, 2.03, 0.0240, 1.05},
                                 {32, 5.47, 2.05, 0.0264, 1.26},
                                 {64, 5.57, 3.51, 0.0351, 1.82}};

// Clusters of 1, 2, .. CTAs that are resident on 132 SMs, cudaOccupancyMaxActiveClusters(): those
// of three and more CTAs leave some SMs idle.
constexpr int kResidentClusters[] = {132, 66, 39, 30, 22, 17, 15, 15}, kMeasuredSms = 132;
static_assert(std::size(kResidentClusters) == kMaxSplits);

constexpr int kTileKeys = 64;

Plan make_plan(int heads, int topk, int64_t splits) {
  const int64_t split_keys = std::max<int64_t>(
      kTileKeys, align_up(ceil_div(std::max(topk, 1), splits), int64_t{kTileKeys}));
  return {.heads = heads,
          .split_keys = static_cast<int>(split_keys),
          .num_splits = static_cast<int>(std::max<int64_t>(1, ceil_div(topk, split_keys)))};
}

// Keys of the longest split of a list of topk.
int longest_split(const Plan& plan, int topk) {
  int longest = std::min(plan.split_keys, topk);
  if (!plan.invariant) return longest;
  for (int begin = plan.split_keys; begin < topk; begin *= 2)
    longest = std::max(longest, std::min(begin, topk - begin));
  return longest;
}

double microseconds(const CtaCost& cost, const Plan& plan, int64_t queries, int heads, int topk,
                    int num_sms) {
  const int64_t clusters = queries * ceil_div(heads, plan.heads);
  const int64_t resident =
      std::max(1, kResidentClusters[plan.num_splits - 1] * num_sms / kMeasuredSms);
  const auto waves = static_cast<double>(ceil_div(clusters, resident));
  const double full = std::min(1.0, static_cast<double>(clusters * plan.num_splits) / num_sms);
  const double cta = cost.start + full * cost.crowd + longest_split(plan, topk) * cost.per_key;
  return waves * cta + (plan.num_splits > 1 ? cost.combine : 0);
}

}  // namespace

Plan plan_call(int64_t queries, int heads, int topk, int num_sms) {
  Plan best;
  double least = 0;
  for (const CtaCost& cost : kCtaCosts) {
    if (cost.heads > 8 && cost.heads / 2 >= heads) continue;  // half the size holds all heads
    for (int splits = 1; splits <= kMaxSplits; ++splits) {
      const Plan plan = make_plan(cost.heads, topk, splits);
      if (!splits_fit(plan.heads, plan.num_splits)) continue;
      const double time = microseconds(cost, plan, queries, heads, topk, num_sms);
      if (best.split_keys != 0 && time >= least) continue;
      best = plan, least = time;
    }
  }
  return best;
}

Plan plan_invariant(int64_t queries, int heads, int topk, int num_sms) {
  int least_splits = 1;
  while (least_splits < kMaxSplits && kInvariantSplitKeys << (least_splits - 1) < topk)
    ++least_splits;
  Plan best;
  double least = 0;
  for (const CtaCost& cost : kCtaCosts) {
    if (cost.heads == 64) continue;  // finds its first row max in another way
    int splits = least_splits;
    while (!splits_fit(cost.heads, splits)) ++splits;  // the last ones are empty
    const Plan plan{.heads = cost.heads,
                    .split_keys = kInvariantSplitKeys,
                    .num_splits = splits,
                    .invariant = true};
    const double time = microseconds(cost, plan, queries, heads, topk, num_sms);
    if (best.split_keys != 0 && time >= least) continue;
    best = plan, least = time;
  }
  return best;
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
