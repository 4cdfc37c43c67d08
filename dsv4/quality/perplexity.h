// Perplexity: exp of the mean negative log-likelihood of the counted tokens.
//
// The error is the standard error of the mean, propagated through exp: ppl * error(nll).

#pragma once

#include <string>

#include "dsv4/quality/statistics.h"
#include "dsv4/quality/windows.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct Perplexity {
  int64_t tokens = 0;
  double nll = 0, nll_error = 0;  // mean, nats per token
  double value = 0, error = 0;    // exp(nll)
};

Perplexity perplexity_of(const Mean& nll);

class PerplexityMeter {
 public:
  explicit PerplexityMeter(std::string model_name) : model_name_(std::move(model_name)) {}
  // logits: [targets, V] f32; a piece without targets is skipped
  void add(const ConstTensorView& logits, const Piece& piece);
  Perplexity result() const { return perplexity_of(nll_); }

 private:
  std::string model_name_;  // named in errors
  Mean nll_;
};

}  // namespace dsv4
