// One activation that is multiplied by several weights. The official engine quantizes activations
// (Q8, one scale per 128 columns) before quantized weights (docs/spec/dsv4.md 7.5); this class does
// so once, and only when needed.

#pragma once

#include "dsv4/model/step.h"
#include "dsv4/ops/linear/linear.h"
#include "dsv4/ops/quant/quant.h"

namespace dsv4 {

class Projection {
 public:
  static constexpr int kActivationColumns = 128;  // columns per scale (docs/spec/dsv4.md 7.5)

  // x: [t, k] f32|bf16. Memory for the codes is allocated here, not on first use, so that it is not
  // freed at the end of an inner scratch scope.
  Projection(Step& step, const ConstTensorView& x) : step_(step), x_(x) {
    if (!step.official()) return;
    codes_ = step.scratch.take(DType::kE4M3, {x.dim(0), x.dim(1)});
    scales_ = step.scratch.take(DType::kE8M0, {x.dim(0), ceil_div(x.dim(1), kActivationColumns)});
  }

  // out = x w^T, with Q8 activations where mode and weight format require them.
  void into(const WeightView& weight, const TensorView& out) {
    if (!step_.official() || !weight.quantized_activations()) return plain(weight, out);
    if (!quantized_) quantize();
    linear(step_.context, {.x = codes_, .x_scale = scales_, .weight = weight, .out = out});
  }

  // Without activation quantization: router, compressor, wo_a, weights_proj, head.
  void plain(const WeightView& weight, const TensorView& out) {
    linear(step_.context, {.x = x_, .weight = weight, .out = out});
  }

 private:
  void quantize() {
    quantize_q8(step_.context,
                {.x = x_, .codes = codes_, .scales = scales_, .group = kActivationColumns});
    quantized_ = true;
  }

  Step& step_;
  ConstTensorView x_;
  TensorView codes_, scales_;
  bool quantized_ = false;
};

}  // namespace dsv4
