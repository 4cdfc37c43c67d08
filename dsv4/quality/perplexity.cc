#include "dsv4/quality/perplexity.h"

#include <cmath>

#include "dsv4/quality/distribution.h"

namespace dsv4 {

Perplexity perplexity_of(const Mean& nll) {
  const double value = std::exp(nll.mean());
  return {.tokens = nll.count(),
          .nll = nll.mean(),
          .nll_error = nll.standard_error(),
          .value = value,
          .error = value * nll.standard_error()};
}

void PerplexityMeter::add(const ConstTensorView& logits, const Piece& piece) {
  if (piece.targets.empty()) return;
  for (const double nll : negative_log_likelihoods(logits, piece, model_name_)) nll_.add(nll);
}

}  // namespace dsv4
