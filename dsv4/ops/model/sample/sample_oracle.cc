// Sorts all candidates and applies the definition.

#include "dsv4/ops/model/sample/sample_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();

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

std::vector<double> log_softmax(const float* logits, int64_t v) {
  const auto largest = static_cast<double>(*std::max_element(logits, logits + v));
  double sum = 0;
  for (int64_t i = 0; i < v; ++i) sum += std::exp(static_cast<double>(logits[i]) - largest);
  std::vector<double> result;
  for (int64_t i = 0; i < v; ++i)
    result.push_back(static_cast<double>(logits[i]) - largest - std::log(sum));
  return result;
}

// f32, as the contract says: the terms in their order, then the mask.
std::vector<float> changed(const SampleArgs& args, int64_t row) {
  const int64_t v = args.logits.dim(1);
  const float* logits = args.logits.row<float>(row);
  std::vector<float> values(logits, logits + v);
  const auto r = static_cast<size_t>(row);
  const SamplingParams& how = args.params[r];
  for (int32_t t = args.term_begin.empty() ? 0 : args.term_begin[r];
       !args.term_begin.empty() && t < args.term_begin[r + 1]; ++t) {
    const TokenTerm& term = args.terms[static_cast<size_t>(t)];
    float& l = values[static_cast<size_t>(term.id)];
    if (term.seen == 1 && l > 0) {
      l /= how.repetition_penalty;
    } else if (term.seen == 1) {
      l *= how.repetition_penalty;
    }
    const float frequency = how.frequency_penalty * static_cast<float>(term.count);
    l -= frequency;
    if (term.count > 0) l -= how.presence_penalty;
    l += term.bias;
  }
  for (int64_t i = 0; i < v && !args.mask.empty(); ++i) {
    const auto word = static_cast<uint32_t>(args.mask.row<int32_t>(row)[i / 32]);
    if ((word & (1u << i % 32)) == 0) values[static_cast<size_t>(i)] = kBanned;
  }
  return values;
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
  const double least = static_cast<double>(params.min_p) * all[order[0]];
  const size_t k =
      params.top_k > 0 ? std::min(order.size(), static_cast<size_t>(params.top_k)) : order.size();
  double top_k_mass = 0;
  for (size_t i = 0; i < k && all[order[i]] >= least; ++i) top_k_mass += all[order[i]];
  double kept = 0;
  for (size_t i = 0; i < k && all[order[i]] >= least; ++i) {
    if (params.top_p < 1 && kept >= static_cast<double>(params.top_p) * top_k_mass) break;
    p[order[i]] = all[order[i]];
    kept += all[order[i]];
  }
  for (double& value : p) value /= kept;
  return p;
}

std::vector<double> drawn_logprobs_oracle(const SampleArgs& args, int64_t row) {
  const int64_t v = args.logits.dim(1);
  const std::vector<float> logits = changed(args, row);
  const SamplingParams& params = args.params[static_cast<size_t>(row)];
  std::vector<double> p = params.temperature == 0 ? softmax(logits.data(), v, 1)
                                                  : sample_distribution(params, logits.data(), v);
  for (double& value : p) value = std::log(value);
  return p;
}

SampleWant sample_oracle(const SampleArgs& args) {
  const int64_t v = args.logits.dim(1), n = args.top_ids.empty() ? 0 : args.top_ids.dim(1);
  SampleWant want;
  for (int64_t r = 0; r < args.logits.dim(0); ++r) {
    const float* logits = args.logits.row<float>(r);
    const SamplingParams& params = args.params[static_cast<size_t>(r)];
    const std::vector<float> drawn_from = changed(args, r);
    const std::vector<double> p = sample_distribution(params, drawn_from.data(), v);
    const double u = random_uniform(params.seed, args.steps[static_cast<size_t>(r)]);
    size_t chosen = 0;
    double below = 0;
    for (size_t id = 0; id < p.size(); ++id) {
      if (p[id] > 0) chosen = id;
      below += p[id];
      if (below > u) break;
    }
    const std::vector<double> raw = log_softmax(logits, v);
    want.ids.push_back(static_cast<double>(chosen));
    want.logprobs.push_back(raw[chosen]);
    const std::vector<size_t> order = by_logit(logits, v);
    for (int64_t i = 0; i < n; ++i) {
      const size_t id = i < v ? order[static_cast<size_t>(i)] : 0;
      const bool listed = i < params.top_logprobs && i < v && logits[id] > kBanned;
      want.top_ids.push_back(listed ? static_cast<double>(id) : -1.0);
      want.top_logprobs.push_back(listed ? raw[id] : static_cast<double>(kBanned));
    }
  }
  return want;
}

}  // namespace dsv4
