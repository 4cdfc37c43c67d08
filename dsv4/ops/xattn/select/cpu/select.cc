// Sorts the blocks of a row by score. Threads share the rows.

#include "dsv4/ops/xattn/select/xattn_select.h"

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/ops/xattn/select/rule.h"

namespace dsv4::xattn_select_kernel::cpu {
namespace {

// scores: [visible] of a row; chosen: the listed blocks, in any order.
void select(const RowLimits& limits, const RowRule& rule, float tau, const float* scores,
            std::vector<int>& chosen) {
  std::vector<int> others;
  chosen.clear();
  uint64_t sum = 0, total = 0;
  for (int j = 0; j < rule.visible; ++j) {
    const uint64_t u = mass(usable_score(scores[j]));
    total += u;
    if (rule.keeps(j)) sum += u;
    (rule.keeps(j) || rule.dense ? chosen : others).push_back(j);
  }
  std::sort(others.begin(), others.end(), [&](int a, int b) {
    const float x = usable_score(scores[a]), y = usable_score(scores[b]);
    return x != y ? x > y : a < b;
  });
  const uint64_t need = limits.top_k > 0 ? 0 : needed_mass(tau, total);
  const auto candidates = static_cast<int>(others.size());
  int by_mass = 0;
  for (; by_mass < candidates && sum < need; ++by_mass) {
    sum += mass(usable_score(scores[others[static_cast<size_t>(by_mass)]]));
  }
  const int n = num_taken(limits, static_cast<int>(chosen.size()), candidates, by_mass);
  chosen.insert(chosen.end(), others.begin(), others.begin() + n);
}

}  // namespace

void run(const Context&, const XattnSelectArgs& args) {
  check_lengths(args.batch, args.batch.cu_q.as<int>()[args.batch.size()], -1);
  const RowLimits limits = row_limits(args);
  const int64_t heads = args.sums.dim(1), rows = args.sums.dim(2), slots = args.sums.dim(3);
  const int *cu_q = args.batch.cu_q.as<int>(), *cu_kv = args.batch.cu_kv.as<int>();
  for (int i = 0; i < args.batch.size(); ++i) {
    const PrefillSequence s = prefill_sequence(cu_q, cu_kv, i, args.batch.causal);
    DSV4_CHECK(s.num_q_blocks(limits.block) <= rows && s.num_k_blocks(limits.block) <= slots,
               "sequence {} has {} query and {} key blocks, sums {}", i,
               s.num_q_blocks(limits.block), s.num_k_blocks(limits.block), to_string(args.sums));
  }
#pragma omp parallel if (dsv4::cpu::worth_sharing(8 * args.sums.numel()))
  {
    std::vector<int> chosen;
#pragma omp for schedule(dynamic, 16)
    for (int64_t at = 0; at < args.batch.size() * heads * rows; ++at) {
      const int64_t i = at / rows / heads, head = at / rows % heads;
      const PrefillSequence s =
          prefill_sequence(cu_q, cu_kv, static_cast<int>(i), args.batch.causal);
      const int prompt = args.prompt_lengths.empty() ? s.keys : args.prompt_lengths.as<int>()[i];
      const RowRule rule = row_rule(limits, s, static_cast<int>(at % rows), prompt);
      const float tau = args.tau.empty() ? 0.f : args.tau.as<float>()[head];
      select(limits, rule, tau, args.sums.as<float>() + at * slots, chosen);
      std::sort(chosen.begin(), chosen.end());
      int* list = args.lists.indices.as<int>() + at * slots;
      std::fill(std::copy(chosen.begin(), chosen.end(), list), list + slots, -1);
      args.lists.counts.as<int>()[at] = static_cast<int>(chosen.size());
    }
  }
}

}  // namespace dsv4::xattn_select_kernel::cpu
