#include "dsv4/engine/token_terms.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

void want(bool holds, const char* field, float value, const char* range) {
  if (!holds) fail(ErrorCode::kBadInput, "{} is {}, want {}", field, value, range);
}

}  // namespace

int64_t max_token_terms(int64_t vocab, int64_t max_tokens) {
  return std::min(vocab, max_tokens + kMaxLogitBiases);
}

void check_sampling(const SamplingParams& p, std::span<const LogitBias> biases, int64_t vocab) {
  const auto finite = [](float x) { return std::isfinite(x); };
  want(p.temperature >= 0 && finite(p.temperature), "temperature", p.temperature, "0 or more");
  want(p.top_p > 0 && p.top_p <= 1, "top_p", p.top_p, "more than 0 and at most 1");
  want(p.min_p >= 0 && p.min_p <= 1, "min_p", p.min_p, "0 to 1");
  want(p.repetition_penalty > 0 && finite(p.repetition_penalty), "repetition_penalty",
       p.repetition_penalty, "more than 0");
  want(finite(p.frequency_penalty), "frequency_penalty", p.frequency_penalty, "a finite number");
  want(finite(p.presence_penalty), "presence_penalty", p.presence_penalty, "a finite number");
  if (p.top_k < 0) fail(ErrorCode::kBadInput, "top_k is {}, want 0 or more", p.top_k);
  if (p.top_logprobs < 0 || p.top_logprobs > kMaxTopLogprobs)
    fail(ErrorCode::kBadInput, "top_logprobs is {}, want 0 to {}", p.top_logprobs, kMaxTopLogprobs);
  if (static_cast<int64_t>(biases.size()) > kMaxLogitBiases)
    fail(ErrorCode::kBadInput, "{} tokens have a bias, at most {} may", biases.size(),
         kMaxLogitBiases);
  std::set<int32_t> seen;
  for (const LogitBias& bias : biases) {
    if (bias.id < 0 || bias.id >= vocab)
      fail(ErrorCode::kBadInput, "the bias of token {} is outside the vocabulary of {}", bias.id,
           vocab);
    if (!seen.insert(bias.id).second)
      fail(ErrorCode::kBadInput, "token {} has two biases", bias.id);
    want(finite(bias.bias), "logit_bias", bias.bias, "finite numbers");
  }
}

TokenTerms::TokenTerms(const SamplingParams& sampling, std::span<const LogitBias> biases,
                       std::span<const int32_t> prompt)
    : counts_(sampling.repetition_penalty != 1 || sampling.frequency_penalty != 0 ||
              sampling.presence_penalty != 0) {
  if (sampling.repetition_penalty != 1) {
    std::vector<int32_t> ids(prompt.begin(), prompt.end());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const int32_t id : ids) terms_.push_back({.id = id, .seen = 1});
  }
  for (const LogitBias& bias : biases) term(bias.id).bias = bias.bias;
}

TokenTerm& TokenTerms::term(int32_t token) {
  const auto at = std::lower_bound(terms_.begin(), terms_.end(), token,
                                   [](const TokenTerm& a, int32_t id) { return a.id < id; });
  if (at != terms_.end() && at->id == token) return *at;
  return *terms_.insert(at, {.id = token});
}

void TokenTerms::add(int32_t token) {
  if (!counts_) return;
  TokenTerm& counted = term(token);
  ++counted.count;
  counted.seen = 1;
}

}  // namespace dsv4
