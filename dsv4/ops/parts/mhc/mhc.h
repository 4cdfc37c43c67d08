// Manifold-constrained hyper-connections: m parallel residual streams (docs/spec/dsv4.md 8).
//
//   rho    = rsqrt(mean(X_t^2) + norm_eps)      over all m * d values of a token
//   mix_i  = (flatten(X_t) . fn_i) * rho        i: pre [m] | post [m] | comb [m, m], row-major
//   pre_j  = sigmoid(mix_j * scale[0] + base_j) + hc_eps
//   post_j = 2 sigmoid(mix_{m+j} * scale[1] + base_{m+j})
//   comb   = Sinkhorn(B), B_jk = mix_i * scale[2] + base_i at i = 2m + mj + k
//
// Sinkhorn: row softmax + eps, column step, then (iters - 1) times a row step and a column step; a
// step divides by (sum + eps).
//
//   hc_pre:   x = sum_j pre_j X_j
//   hc_post:  X'_k = post_k y + sum_j comb[j][k] X_j   the sum runs over the FIRST index
//   hc_head:  x = sum_j pre_j X_j with its own fn [m, m*d], base [m], scale [1]; no post, no comb
//   hc_mean:  x = sum_j X_j / m, which a drafter sees of a layer (docs/spec/dsv4.md 9.2)
//
// f32 throughout, one rounding at each store.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

inline constexpr int kMaxStreams = 8;  // implementations hold them in registers

struct HcPreArgs {
  ConstTensorView streams;  // X [t, m, d] f32|bf16
  ConstTensorView fn;       // [m*(2+m), m*d] f32
  ConstTensorView base;     // [m*(2+m)] f32
  ConstTensorView scale;    // [3] f32
  float norm_eps = 1e-6f, hc_eps = 1e-6f;
  int sinkhorn_iters = 20;
  TensorView out;   // [t, d] f32|bf16
  TensorView post;  // [t, m] f32
  TensorView comb;  // [t, m, m] f32
};

struct HcPostArgs {
  ConstTensorView y;     // [t, d] f32|bf16; rounded to the streams' dtype first: with bf16 streams,
                         // an f32 y (the experts' sum, docs/spec/dsv4.md 7.4) is rounded to bf16
  ConstTensorView post;  // [t, m] f32
  ConstTensorView comb;  // [t, m, m] f32
  TensorView streams;    // X [t, m, d] f32|bf16, updated in place
};

struct HcHeadArgs {
  ConstTensorView streams;  // X [t, m, d] f32|bf16
  ConstTensorView fn;       // [m, m*d] f32
  ConstTensorView base;     // [m] f32
  ConstTensorView scale;    // [1] f32
  float norm_eps = 1e-6f, hc_eps = 1e-6f;
  TensorView out;  // [t, d] f32|bf16
};

struct HcMeanArgs {
  ConstTensorView streams;  // X [t, m, d] f32|bf16
  TensorView out;           // [t, d] f32|bf16; rows may be strided
};

extern const Op<HcPreArgs> hc_pre;

extern const Op<HcPostArgs> hc_post;

extern const Op<HcHeadArgs> hc_head;

extern const Op<HcMeanArgs> hc_mean;

}  // namespace dsv4
