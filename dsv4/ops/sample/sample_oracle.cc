// Sorts all candidates and applies the definition.

#include "dsv4/ops/sample/sample_oracle.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

std::vector<size_t> by_logit(const float* logits, int64_t v) {
  std::vector<size_t> order(static_cast<size_t>(v));
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  return order;
}

std::vector<double> softmax(const float* logits, int64_t v, double temperature) {
  const auto largest = static_cast<double>(*std::max_element(logits, logits + v));
  std::vector<double> p;
  double sum = 0;
  for (int64_t i = 0; i < v; ++i) {
    p.push_back(std::exp((static_cast<double>(logits[i]) - largest) / temperature));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  return p;
}

}  // namespace

std::vector<double> sample_distribution(const SamplingParams& params, const float* logits,
                                        int64_t v) {
  const std::vector<size_t> order = by_logit(logits, v);
  std::vector<double> p(static_cast<size_t>(v), 0.0);
  if (params.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  const std::vector<double> all = softmax(logits, v, static_cast<double>(params.temperature));
  const size_t k =
      params.top_k > 0 ? std::min(order.size(), static_cast<size_t>(params.top_k)) : order.size();
  double top_k_mass = 0;
  for (size_t i = 0; i < k; ++i) top_k_mass += all[order[i]];
  double kept = 0;
  for (size_t i = 0; i < k; ++i) {
    if (params.top_p < 1 && kept >= static_cast<double>(params.top_p) * top_k_mass) break;
    p[order[i]] = all[order[i]];
    kept += all[order[i]];
  }
  for (double& value : p) value /= kept;
  return p;
}

SampleWant sample_oracle(const SampleArgs& args) {
  const int64_t v = args.logits.dim(1);
  SampleWant want;
  for (int64_t r = 0; r < args.logits.dim(0); ++r) {
    const float* logits = args.logits.row<float>(r);
    const SamplingParams& params = args.params[static_cast<size_t>(r)];
    const std::vector<double> p = sample_distribution(params, logits, v);
    const double u = random_uniform(params.seed, args.steps[static_cast<size_t>(r)]);
    size_t chosen = 0;
    double below = 0;
    for (const size_t id : by_logit(logits, v)) {
      if (p[id] > 0) chosen = id;
      below += p[id];
      if (below > u) break;
    }
    want.ids.push_back(static_cast<double>(chosen));
    want.logprobs.push_back(std::log(softmax(logits, v, 1)[chosen]));
  }
  return want;
}

}  // namespace dsv4
