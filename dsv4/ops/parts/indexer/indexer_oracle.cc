#include "dsv4/ops/parts/indexer/indexer_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double score(const Context& context, const IndexScoresArgs& args, int64_t query,
             const std::vector<float>& key) {
  const bool official = context.numerics == Numerics::kOfficial;
  const auto round = [&](double v) { return official ? oracle::bf16(v) : v; };
  const int64_t heads = args.q.dim(1);
  std::vector<double> weights = oracle::row(args.weights, query);
  for (double& w : weights) w = round(w * static_cast<double>(args.weight_scale));
  double sum = 0;
  for (int64_t h = 0; h < heads; ++h) {
    const std::vector<double> q = oracle::row(args.q, query * heads + h);
    double dot = 0;
    for (size_t c = 0; c < q.size(); ++c) dot += q[c] * static_cast<double>(key[c]);
    sum += round(std::max(round(dot), 0.0) * weights[static_cast<size_t>(h)]);
  }
  return round(sum);
}

}  // namespace

std::vector<double> index_scores_oracle(const Context& context, const IndexScoresArgs& args) {
  const int64_t t = args.q.dim(0), n = args.scores.dim(1), entries = args.keys.page_entries;
  std::vector<float> key(static_cast<size_t>(args.keys.layout.width));
  std::vector<double> out;
  for (int64_t i = 0; i < t; ++i) {
    const int32_t* pages = args.pages.row<int32_t>(args.sequence.as<int32_t>()[i]);
    for (int64_t s = 0; s < n; ++s) {
      const bool seen = s < args.visible.as<int32_t>()[i];
      if (seen) load_row(args.keys, pages[s / entries] * entries + s % entries, key.data());
      out.push_back(seen ? score(context, args, i, key) : -kInfinity);
    }
  }
  return out;
}

// Sorts everything by (score descending, index ascending).
std::vector<double> top_k_oracle(const TopKArgs& args) {
  const auto k = static_cast<size_t>(args.indices.dim(1));
  std::vector<double> out;
  for (int64_t i = 0; i < args.scores.dim(0); ++i) {
    const std::vector<double> scores = oracle::row(args.scores, i);
    std::vector<size_t> order;
    for (size_t s = 0; s < static_cast<size_t>(args.visible.as<int32_t>()[i]); ++s) {
      if (scores[s] > -kInfinity) order.push_back(s);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    order.resize(std::min(order.size(), k));
    std::sort(order.begin(), order.end());
    for (const size_t s : order) {
      const auto entry = static_cast<int64_t>(s),
                 per_page = static_cast<int64_t>(args.page_entries);
      const int32_t* pages =
          args.pages.empty() ? nullptr : args.pages.row<int32_t>(args.sequence.as<int32_t>()[i]);
      out.push_back(static_cast<double>(
          pages == nullptr ? entry : pages[entry / per_page] * per_page + entry % per_page));
    }
    out.resize(out.size() + k - order.size(), -1.0);
  }
  return out;
}

}  // namespace dsv4
