// DSpark in fp64 (docs/spec/dsv4.md 9.2), for exact numerics, of one sequence: from the streams
// that the layers of the model give to the logits and confidences of the guesses.

#pragma once

#include <algorithm>

#include "tests/model/layer_oracle.h"

namespace dsv4::test {

class DsparkOracle {
 public:
  using Vector = LayerOracle::Vector;

  explicit DsparkOracle(const Model& model)
      : c_(model.config()), main_(model.weights()), w_(*model.weights().drafter) {
    for (const LayerWeights& layer : w_.layers) stages_.emplace_back(c_, layer);
    keys_.resize(stages_.size());
  }

  // The next token of the sequence. streams: after each layer that it sees, [M * D] each
  void enter(const std::vector<Vector>& streams) {
    Vector tap;
    for (const Vector& x : streams) {
      for (int64_t i = 0; i < c_.hidden_size; ++i) {
        double sum = 0;
        for (int64_t m = 0; m < c_.hc_mult; ++m)
          sum += x[static_cast<size_t>(m * c_.hidden_size + i)];
        tap.push_back(sum / static_cast<double>(c_.hc_mult));
      }
    }
    const Vector x = stages_[0].rms(stages_[0].product(tap, w_.main_proj), w_.main_norm);
    for (size_t s = 0; s < stages_.size(); ++s)
      keys_[s].push_back(stages_[s].key_of(x, std::ssize(keys_[s])));
  }

  // h of each token of the block that begins with y.
  std::vector<Vector> block(int32_t y) const {
    const int64_t position = std::ssize(keys_[0]), size = c_.dspark.block_size;
    std::vector<Vector> x;
    for (int64_t i = 0; i < size; ++i) {
      const Vector e = oracle::row(main_.embed, i == 0 ? y : c_.dspark.noise);
      Vector& streams = x.emplace_back();
      for (int64_t m = 0; m < c_.hc_mult; ++m) streams.insert(streams.end(), e.begin(), e.end());
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      std::vector<Vector> keys(keys_[s].end() - std::min(position, c_.window), keys_[s].end());
      for (int64_t i = 0; i < size; ++i)
        keys.push_back(stages_[s].key(x[static_cast<size_t>(i)], position + i));
      for (int64_t i = 0; i < size; ++i)
        x[static_cast<size_t>(i)] = stages_[s].block(x[static_cast<size_t>(i)], position + i, keys);
    }
    std::vector<Vector> hidden;
    for (const Vector& streams : x) hidden.push_back(stages_[0].head_of(streams, w_.hc_head));
    return hidden;
  }

  // before: the guess before
  Vector logits(const Vector& hidden, int32_t before) const {
    const LayerOracle& layer = stages_[0];
    Vector logits = layer.product(layer.rms(hidden, w_.norm), main_.head);
    const Vector more = layer.product(oracle::row(w_.markov_w1, before), w_.markov_w2);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] += more[i];
    return logits;
  }
  // The chance that the guess holds.
  double chance(const Vector& hidden, int32_t before) const {
    Vector x = hidden;
    const Vector e = oracle::row(w_.markov_w1, before), w = oracle::row(w_.confidence, 0);
    x.insert(x.end(), e.begin(), e.end());
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += w[i] * x[i];
    return 1 / (1 + std::exp(-sum));
  }

 private:
  const ModelConfig& c_;
  const ModelWeights& main_;
  const DrafterWeights& w_;
  std::vector<LayerOracle> stages_;
  std::vector<std::vector<Vector>> keys_;  // [stage][position]
};

}  // namespace dsv4::test
