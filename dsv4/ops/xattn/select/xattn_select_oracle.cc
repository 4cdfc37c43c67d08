#include "dsv4/ops/xattn/select/xattn_select_case.h"

#include <algorithm>
#include <cmath>

namespace dsv4 {
namespace {

// Blocks of a row; v: the scores of those it sees.
std::vector<bool> row_oracle(const XattnSelectArgs& args, const std::vector<double>& v,
                             int64_t diagonal, double tau) {
  std::vector<double> u;
  double total = 0;  // exact: integers below 2^53
  for (const double score : v) total += u.emplace_back(std::floor(std::ldexp(score, 40)));
  std::vector<bool> taken(v.size());
  double sum = 0;
  int64_t count = 0;
  const auto take = [&](size_t j) {
    taken[j] = true;
    sum += u[j];
    ++count;
  };
  for (size_t j = 0; j < v.size(); ++j) {
    if ((args.sink && j == 0) || static_cast<int64_t>(j) == diagonal) take(j);
  }
  const auto wants_more = [&] {
    if (count < args.min_blocks) return true;
    if (count >= args.max_blocks) return false;
    return args.top_k > 0 ? count < args.top_k : sum < tau * total;
  };
  while (count < static_cast<int64_t>(v.size()) && wants_more()) {
    size_t best = v.size();
    for (size_t j = 0; j < v.size(); ++j) {
      if (!taken[j] && (best == v.size() || v[j] > v[best])) best = j;
    }
    take(best);
  }
  return taken;
}

}  // namespace

XattnSelectWant xattn_select_oracle(const XattnSelectArgs& args) {
  const int64_t heads = args.sums.dim(1), rows = args.sums.dim(2), slots = args.sums.dim(3);
  const int block = static_cast<int>(args.block);
  XattnSelectWant want;
  for (int64_t at = 0; at < args.batch.size() * heads * rows; ++at) {
    const auto i = static_cast<int>(at / rows / heads), r = static_cast<int>(at % rows);
    const PrefillSequence s = prefill_sequence(args.batch.cu_q.as<int>(),
                                               args.batch.cu_kv.as<int>(), i, args.batch.causal);
    const int q_block = s.first_block(block) + r;
    const int n = r < s.num_q_blocks(block) ? s.visible_blocks(block, q_block) : 0;
    std::vector<double> v;
    for (int j = 0; j < n; ++j) {
      const auto score = static_cast<double>(args.sums.as<float>()[at * slots + j]);
      v.push_back(score > 0 ? std::min(score, 4096.0) : 0.0);
    }
    const double tau =
        args.tau.empty() ? 0 : static_cast<double>(args.tau.as<float>()[at / rows % heads]);
    std::vector<bool> taken = row_oracle(args, v, args.batch.causal ? q_block : -1, tau);
    const int64_t prompt = args.prompt_lengths.empty() ? s.keys : args.prompt_lengths.as<int>()[i];
    const int64_t last =
        std::min<int64_t>((q_block + 1) * args.block, s.first_position + s.queries) - 1;
    if (prompt < args.min_length || last >= prompt - args.dense_tail) taken.assign(v.size(), true);
    const auto begin = static_cast<int64_t>(want.indices.size());
    for (size_t j = 0; j < taken.size(); ++j) {
      if (taken[j]) want.indices.push_back(static_cast<double>(j));
    }
    want.counts.push_back(static_cast<double>(static_cast<int64_t>(want.indices.size()) - begin));
    want.indices.resize(static_cast<size_t>(begin + slots), -1);
  }
  return want;
}

}  // namespace dsv4
