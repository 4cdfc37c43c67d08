#include "dsv4/quality/divergence.h"

#include <algorithm>
#include <cmath>

#include "dsv4/cpu/parallel.h"
#include "dsv4/quality/distribution.h"

namespace dsv4 {

void DivergenceMeter::add(const ConstTensorView& reference, const ConstTensorView& model,
                          const Piece& piece) {
  if (piece.targets.empty()) return;
  const std::vector<double> reference_nll =
                                negative_log_likelihoods(reference, piece, reference_name_),
                            model_nll = negative_log_likelihoods(model, piece, model_name_);
  const auto rows = static_cast<int64_t>(piece.targets.size());
  const int64_t vocab = reference.dim(1);
  expect(model_name_.c_str(), model, {DType::kF32}, {rows, vocab});
  const size_t before = kl_.size();
  kl_.resize(before + piece.targets.size());
  double* kl = kl_.data() + before;
  int64_t same = 0;
#pragma omp parallel for reduction(+ : same) if (cpu::worth_sharing(16 * rows * vocab))
  for (int64_t i = 0; i < rows; ++i) {
    const std::span p(reference.row<float>(i), static_cast<size_t>(vocab)),
        q(model.row<float>(i), static_cast<size_t>(vocab));
    kl[i] = kl_divergence(p, q);
    same += best_token(p) == best_token(q) ? 1 : 0;
  }
  same_best_ += same;
  for (size_t i = 0; i < reference_nll.size(); ++i) {
    reference_nll_.add(reference_nll[i]);
    model_nll_.add(model_nll[i]);
    difference_.add(model_nll[i] - reference_nll[i]);
  }
}

Divergence DivergenceMeter::result() const {
  Mean kl;
  for (const double value : kl_) kl.add(value);
  std::vector<double> sorted = kl_;
  std::sort(sorted.begin(), sorted.end());
  const double ratio = std::exp(difference_.mean());
  return {.tokens = kl.count(),
          .mean = kl.mean(),
          .mean_error = kl.standard_error(),
          .median = quantile(sorted, 0.5),
          .q99 = quantile(sorted, 0.99),
          .q999 = quantile(sorted, 0.999),
          .max = quantile(sorted, 1),
          .top1 = static_cast<double>(same_best_) / static_cast<double>(kl.count()),
          .reference = perplexity_of(reference_nll_),
          .model = perplexity_of(model_nll_),
          .ratio = ratio,
          .ratio_error = ratio * difference_.standard_error()};
}

}  // namespace dsv4
