// The divergence of a model's next-token distributions from a reference's, over the same tokens.
//
// Stores one number per counted token (for the quantiles) and no logits.

#pragma once

#include <string>
#include <vector>

#include "dsv4/quality/perplexity.h"

namespace dsv4 {

struct Divergence {
  int64_t tokens = 0;
  double mean = 0, mean_error = 0;  // KL(reference || model) in nats
  double median = 0, q99 = 0, q999 = 0, max = 0;
  double top1 = 0;  // share of tokens with the same most likely token
  Perplexity reference, model;
  // model's perplexity / reference's, from per-token differences: much more precise than the two
  // errors suggest, because both models find the same tokens hard.
  double ratio = 0, ratio_error = 0;
};

class DivergenceMeter {
 public:
  DivergenceMeter(std::string reference, std::string model)
      : reference_name_(std::move(reference)), model_name_(std::move(model)) {}
  // Both [targets, V] f32; a piece without targets is skipped.
  void add(const ConstTensorView& reference, const ConstTensorView& model, const Piece& piece);
  Divergence result() const;

 private:
  std::string reference_name_, model_name_;  // named in errors
  std::vector<double> kl_;                   // [tokens]
  int64_t same_best_ = 0;
  Mean reference_nll_, model_nll_, difference_;
};

}  // namespace dsv4
