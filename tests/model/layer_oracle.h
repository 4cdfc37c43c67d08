// A window-only layer of a drafter in fp64 (docs/spec/dsv4.md 4, 7, 8), for exact numerics:
// formulas written out, and the fp64 oracles of ops where a drafter uses them as any layer does.
// What one oracle gives another is stored in f32.

#pragma once

#include <cmath>
#include <vector>

#include "dsv4/model/model.h"
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "dsv4/ops/parts/mhc/mhc_case.h"

namespace dsv4::test {

class LayerOracle {
 public:
  using Vector = std::vector<double>;

  LayerOracle(const ModelConfig& config, const LayerWeights& weights) : c_(config), w_(weights) {}

  // The row [d] that attention keeps of x, the normalized input of the layer, at a position.
  Vector key_of(const Vector& x, int64_t position) const {
    return rotated(rms(product(x, w_.attn.wkv), w_.attn.kv_norm), position, 1);
  }
  // And of the streams X0 [M * D].
  Vector key(const Vector& x0, int64_t position) const {
    return key_of(rms(pre(x0, w_.hc_attn).out, w_.attn_norm), position);
  }

  // X1 [M * D] at a position that sees these keys.
  Vector block(const Vector& x0, int64_t position, const std::vector<Vector>& keys) const {
    HcPreWant gates = pre(x0, w_.hc_attn);
    const Vector x = rms(gates.out, w_.attn_norm);
    const Vector middle = post(x0, attention(x, position, keys), gates);
    gates = pre(middle, w_.hc_ffn);
    return post(middle, experts(rms(gates.out, w_.ffn_norm)), gates);
  }

  // [D] of streams
  Vector head_of(const Vector& x1, const HyperWeights& hc) const {
    const Buffer streams = oracle::stored(DType::kF32, {1, c_.hc_mult, c_.hidden_size}, x1);
    const Buffer out(DType::kF32, {1, c_.hidden_size});
    return hc_head_oracle({.streams = streams,
                           .fn = hc.fn,
                           .base = hc.base,
                           .scale = hc.scale,
                           .norm_eps = c_.norm_eps,
                           .hc_eps = c_.hc_eps,
                           .out = out});
  }
  static Vector product(const Vector& x, const WeightView& weight) {
    const Buffer in = tensor(x), out(DType::kF32, {1, weight.n});
    return linear_oracle({.x = in, .weight = weight, .out = out});
  }
  // Also the norm of a head, without weight.
  Vector rms(Vector x, const ConstTensorView& weight = {}) const {
    double squares = 0;
    for (const double v : x) squares += v * v;
    const double scale =
        1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(c_.norm_eps));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] *= scale * (weight.empty() ? 1 : oracle::value(weight, static_cast<int64_t>(i)));
    return x;
  }

 private:
  static Buffer tensor(const Vector& x) {
    return oracle::stored(DType::kF32, {1, std::ssize(x)}, x);
  }
  Vector rotated(Vector x, int64_t position, double sign) const {
    const int64_t first = c_.head_dim - c_.rope_dim;
    for (int64_t i = 0; 2 * i < c_.rope_dim; ++i) {
      const double f =
          std::pow(c_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(c_.rope_dim));
      const double phi = static_cast<double>(position) * f;
      double &a = x[static_cast<size_t>(first + 2 * i)],
             &b = x[static_cast<size_t>(first + 2 * i + 1)];
      const double turned = a * std::cos(phi) - sign * b * std::sin(phi);
      b = sign * a * std::sin(phi) + b * std::cos(phi);
      a = turned;
    }
    return x;
  }
  HcPreWant pre(const Vector& x, const HyperWeights& hc) const {
    const Buffer streams = oracle::stored(DType::kF32, {1, c_.hc_mult, c_.hidden_size}, x);
    const Buffer out(DType::kF32, {1, c_.hidden_size}), gate(DType::kF32, {1, c_.hc_mult}),
        comb(DType::kF32, {1, c_.hc_mult, c_.hc_mult});
    return hc_pre_oracle({.streams = streams,
                          .fn = hc.fn,
                          .base = hc.base,
                          .scale = hc.scale,
                          .norm_eps = c_.norm_eps,
                          .hc_eps = c_.hc_eps,
                          .sinkhorn_iters = c_.sinkhorn_iters,
                          .out = out,
                          .post = gate,
                          .comb = comb});
  }
  // X'_k = post_k y + sum_j comb_jk X_j
  Vector post(const Vector& x, const Vector& y, const HcPreWant& gates) const {
    const auto m = static_cast<size_t>(c_.hc_mult), d = static_cast<size_t>(c_.hidden_size);
    Vector next(m * d);
    for (size_t k = 0; k < m; ++k) {
      for (size_t i = 0; i < d; ++i) {
        next[k * d + i] = gates.post[k] * y[i];
        for (size_t j = 0; j < m; ++j) next[k * d + i] += gates.comb[j * m + k] * x[j * d + i];
      }
    }
    return next;
  }
  Vector attention(const Vector& x, int64_t position, const std::vector<Vector>& keys) const {
    const AttentionWeights& w = w_.attn;
    const Vector q = product(rms(product(x, w.wq_a), w.q_norm), w.wq_b);
    Vector heads;
    for (int64_t h = 0; h < c_.num_heads; ++h) {
      const auto at = q.begin() + h * c_.head_dim;
      const Vector o = head(rotated(rms(Vector(at, at + c_.head_dim)), position, 1), keys,
                            oracle::value(w.sink, h));
      for (const double v : rotated(o, position, -1)) heads.push_back(v);
    }
    const int64_t width = std::ssize(heads) / c_.o_groups;
    Vector low;
    for (int64_t g = 0; g < c_.o_groups; ++g) {
      const auto at = heads.begin() + g * width;
      const WeightView rows = w.wo_a.rows(g * c_.o_lora_rank, (g + 1) * c_.o_lora_rank);
      for (const double v : product(Vector(at, at + width), rows)) low.push_back(v);
    }
    return product(low, w.wo_b);
  }
  Vector head(const Vector& q, const std::vector<Vector>& keys, double sink) const {
    Vector scores;
    double most = sink;
    for (const Vector& key : keys) {
      double dot = 0;
      for (size_t i = 0; i < q.size(); ++i) dot += q[i] * key[i];
      scores.push_back(dot / std::sqrt(static_cast<double>(c_.head_dim)));
      most = std::max(most, scores.back());
    }
    double sum = std::exp(sink - most);
    Vector out(q.size());
    for (size_t j = 0; j < keys.size(); ++j) {
      const double p = std::exp(scores[j] - most);
      sum += p;
      for (size_t i = 0; i < q.size(); ++i) out[i] += p * keys[j][i];
    }
    for (double& v : out) v /= sum;
    return out;
  }
  Vector experts(const Vector& x) const {
    const Buffer in = tensor(x), acc(DType::kF32, {1, c_.hidden_size});
    const MoeWeights& w = w_.moe;
    return moe_oracle({.numerics = Numerics::kExact}, {.x = in,
                                                       .gate = w.gate,
                                                       .bias = w.bias,
                                                       .routed = w.stack(),
                                                       .shared = w.shared,
                                                       .experts_per_token = c_.experts_per_token,
                                                       .route_scale = c_.route_scale,
                                                       .normalize = c_.normalize_weights,
                                                       .swiglu_limit = c_.swiglu_limit,
                                                       .acc = acc});
  }

  const ModelConfig& c_;
  const LayerWeights& w_;
};

}  // namespace dsv4::test
