// One activation that is multiplied by several weights, for the ops that are made of other ops. The
// official engine quantizes activations (Q8, one scale per 128 columns) before quantized weights
// (docs/spec/dsv4.md 7.5); this class does so once, and only when
// the product does not include it.

#pragma once

#include <optional>

#include "dsv4/base/bits.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/norm/norm.h"
#include "dsv4/ops/parts/quant/quant.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {

class Projection {
 public:
  static constexpr int kActivationColumns = 128;  // columns per scale (docs/spec/dsv4.md 7.5)

  // x: [t, k] f32|bf16. Memory for the codes is allocated here, not on first use, so that it is not
  // freed at the end of an inner scope of the workspace.
  Projection(const Context& context, const ConstTensorView& x) : context_(context), x_(x) {
    if (context.numerics != Numerics::kOfficial) return;
    codes_ = workspace(context).take(DType::kE4M3, {x.dim(0), x.dim(1)});
    scales_ =
        workspace(context).take(DType::kE8M0, {x.dim(0), ceil_div(x.dim(1), kActivationColumns)});
  }

  // x is what the norm gives; Q8 of it, where `weight` and the mode want it, is made in the same
  // pass.
  Projection(const Context& context, RmsNormArgs norm, const WeightView& weight)
      : Projection(context, norm.out) {
    quantized_ = context.numerics == Numerics::kOfficial && weight.quantized_activations();
    if (quantized_) norm.codes = codes_, norm.scales = scales_;
    rms_norm(context, norm);
  }

  // Some rows of x. What has not been made by now, it makes for itself.
  Projection rows(int64_t begin, int64_t end) const {
    Projection some = *this;
    some.x_ = x_.slice(0, begin, end);
    if (codes_.rank > 0) {
      some.codes_ = codes_.slice(0, begin, end);
      some.scales_ = scales_.slice(0, begin, end);
    }
    return some;
  }

  // Where Q8 of x goes that the caller makes itself, before the first product; rank 0: nowhere.
  const TensorView& codes() const { return codes_; }
  const TensorView& scales() const { return scales_; }
  void codes_are_made() { quantized_ = true; }

  // out = x w^T, with Q8 activations where mode and weight format require them.
  void into(const WeightView& weight, const TensorView& out) {
    if (context_.numerics != Numerics::kOfficial || !weight.quantized_activations())
      return plain(weight, out);
    const LinearArgs whole{.x = x_, .weight = weight, .out = out, .quantize_x = true};
    if (!quantized_ && !choose(linear, context_, whole).parts()) return linear(context_, whole);
    if (!quantized_) quantize();
    linear(context_, {.x = codes_, .x_scale = scales_, .weight = weight, .out = out});
  }

  // Without activation quantization: compressor, weights_proj.
  void plain(const WeightView& weight, const TensorView& out) {
    linear(context_, {.x = x_, .weight = weight, .out = out});
  }

 private:
  void quantize() {
    quantize_q8(context_,
                {.x = x_, .codes = codes_, .scales = scales_, .group = kActivationColumns});
    quantized_ = true;
  }

  const Context& context_;
  ConstTensorView x_;
  TensorView codes_, scales_;
  bool quantized_ = false;
};

// Gives back what projections take from the workspace while this lives. Ops have scopes of their
// own; a step that projects itself needs one, since on a device its scratch is other memory.
class ProjectionScope {
 public:
  explicit ProjectionScope(const Context& context) {
    if (context.numerics == Numerics::kOfficial) scope_.emplace(workspace(context));
  }

 private:
  std::optional<Scratch::Scope> scope_;
};

}  // namespace dsv4
