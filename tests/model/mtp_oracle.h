// The MTP block in fp64 (docs/spec/dsv4.md 9.1).

#pragma once

#include "tests/model/layer_oracle.h"

namespace dsv4::test {

class MtpOracle {
 public:
  using Vector = LayerOracle::Vector;

  explicit MtpOracle(const Model& model)
      : c_(model.config()),
        main_(model.weights()),
        w_(*model.weights().drafter),
        layer_(c_, w_.layers[0]) {}

  // X0 [M * D] of the streams of the token before, and the token.
  Vector start(const Vector& before, int32_t token) const {
    const Vector e =
        layer_.product(layer_.rms(oracle::row(main_.embed, token), w_.enorm), w_.e_proj);
    Vector x0;
    for (int64_t m = 0; m < c_.hc_mult; ++m) {
      const auto at = before.begin() + m * c_.hidden_size;
      const Vector z =
          layer_.product(layer_.rms(Vector(at, at + c_.hidden_size), w_.hnorm), w_.h_proj);
      for (size_t i = 0; i < z.size(); ++i) x0.push_back(z[i] + e[i]);
    }
    return x0;
  }

  Vector key(const Vector& x0, int64_t position) const { return layer_.key(x0, position); }
  // The keys are those of its window, its own among them.
  Vector block(const Vector& x0, int64_t position, const std::vector<Vector>& keys) const {
    return layer_.block(x0, position, keys);
  }
  Vector logits(const Vector& x1) const {
    return layer_.product(layer_.rms(layer_.head_of(x1, w_.hc_head), w_.norm), main_.head);
  }

 private:
  const ModelConfig& c_;
  const ModelWeights& main_;
  const DrafterWeights& w_;
  const LayerOracle layer_;
};

}  // namespace dsv4::test
