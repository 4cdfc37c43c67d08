// One activation fed to several weights. The official engine quantises activations (Q8, 128 columns
// a scale) in front of quantised weights (spec dsv4.md 7.5); this does it once and only when asked
// for.

#pragma once

#include "dsv4/model/step.h"
#include "dsv4/ops/linear/linear.h"
#include "dsv4/ops/quant/quant.h"

namespace dsv4 {

class Projection {
 public:
  Projection(Step& step, const ConstTensorView& x) : step_(step), x_(x) {}  // x: [t, k] f32|bf16

  // out = x w^T, with Q8 activations where mode and weight format ask for them.
  void into(const WeightView& weight, const TensorView& out) {
    if (!step_.official() || !weight.quantised_activations()) return plain(weight, out);
    if (codes_.empty()) quantise();
    linear(step_.context, {.x = codes_, .x_scale = scales_, .weight = weight, .out = out});
  }

  // Without activation quantisation: router, compressor, wo_a, weights_proj, head.
  void plain(const WeightView& weight, const TensorView& out) {
    linear(step_.context, {.x = x_, .weight = weight, .out = out});
  }

 private:
  void quantise() {
    const int64_t t = x_.dim(0), k = x_.dim(1);
    codes_ = step_.scratch.take(DType::kE4M3, {t, k});
    scales_ = step_.scratch.take(DType::kE8M0, {t, ceil_div(k, 128)});
    quantize_q8(step_.context, {.x = x_, .codes = codes_, .scales = scales_, .group = 128});
  }

  Step& step_;
  ConstTensorView x_;
  TensorView codes_, scales_;
};

}  // namespace dsv4
