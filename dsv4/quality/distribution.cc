#include "dsv4/quality/distribution.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"

namespace dsv4 {

double log_sum_exp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

double kl_divergence(std::span<const float> reference, std::span<const float> model) {
  const double log_p = log_sum_exp(reference), log_q = log_sum_exp(model);
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = reference[i] - log_p, q = model[i] - log_q;
    sum += std::exp(p) * (p - q);
  }
  return std::max(sum, 0.0);
}

int32_t best_token(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<double> negative_log_likelihoods(const ConstTensorView& logits, const Piece& piece,
                                             const std::string& name) {
  const auto rows = static_cast<int64_t>(piece.targets.size());
  const int64_t vocab = logits.dim(1);
  expect(name.c_str(), logits, {DType::kF32}, {rows, vocab});
  for (const int32_t target : piece.targets)
    DSV4_CHECK(target >= 0 && target < vocab, "target {} is outside the {} logits", target, vocab);
  std::vector<double> nll(static_cast<size_t>(rows));
  std::vector<int64_t> bad(static_cast<size_t>(rows), -1);  // first logit that is not finite
#pragma omp parallel for if (cpu::worth_sharing(8 * rows * vocab))
  for (int64_t i = 0; i < rows; ++i) {
    const std::span row(logits.row<float>(i), static_cast<size_t>(vocab));
    const auto at = static_cast<size_t>(i);
    const auto wrong =
        std::find_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); });
    if (wrong != row.end()) {
      bad[at] = wrong - row.begin();
    } else {
      nll[at] = log_sum_exp(row) - row[static_cast<size_t>(piece.targets[at])];
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    if (const int64_t token = bad[static_cast<size_t>(i)]; token >= 0) {
      fail(ErrorCode::kBadInput, "{}: the logit of token {} at position {} of window {} is {}",
           name, token, piece.position + i, piece.window, logits.row<float>(i)[token]);
    }
  }
  return nll;
}

}  // namespace dsv4
