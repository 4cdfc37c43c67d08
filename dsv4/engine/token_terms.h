// What the sampler is given about single tokens for one request (ops/model/sample/sample.h): the
// biases of the request, and the tokens that its penalties concern.
//
// The presence and frequency penalties concern the answer, the repetition penalty also the prompt.
// Where a request has none of them, no token is counted.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/ops/model/sample/sample.h"

namespace dsv4 {

struct LogitBias {
  int32_t id = 0;
  float bias = 0;  // added to the logit
};

// Most biases of one request. Together with a term for each token of a sequence, this bounds the
// terms of a row.
inline constexpr int64_t kMaxLogitBiases = 1024;

// The most terms that a row can have.
int64_t max_token_terms(int64_t vocab, int64_t max_tokens);

// Throws kBadInput naming the value that is out of range, or a bias for a token that is given twice
// or is outside the vocabulary.
void check_sampling(const SamplingParams& sampling, std::span<const LogitBias> biases,
                    int64_t vocab);

class TokenTerms {
 public:
  TokenTerms() = default;
  TokenTerms(const SamplingParams& sampling, std::span<const LogitBias> biases,
             std::span<const int32_t> prompt);

  void add(int32_t token);  // to the answer
  // In ascending id, each id once.
  std::span<const TokenTerm> list() const { return terms_; }
  // How many there may be after so many more tokens.
  int64_t size_after(int64_t tokens) const { return std::ssize(terms_) + (counts_ ? tokens : 0); }

 private:
  TokenTerm& term(int32_t token);

  std::vector<TokenTerm> terms_;
  bool counts_ = false;
};

}  // namespace dsv4
