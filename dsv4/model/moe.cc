#include "dsv4/model/moe.h"

#include <algorithm>

#include "dsv4/model/projection.h"
#include "dsv4/ops/router/router.h"

namespace dsv4 {

TensorView moe(Step& step, const MoeWeights& weights, const ConstTensorView& x) {
  const ModelConfig& m = step.config;
  const int64_t t = step.num_tokens;
  const TensorView acc = step.scratch.take(DType::kF32, {t, m.hidden_size});
  std::fill_n(acc.as<float>(), acc.numel(), 0.f);

  const Scratch::Scope scope(step.scratch);
  const TensorView logits = step.scratch.take(DType::kF32, {t, m.num_experts});
  const TensorView chosen = step.scratch.take(DType::kI32, {t, m.experts_per_token});
  const TensorView share = step.scratch.take(DType::kF32, {t, m.experts_per_token});
  Projection(step, x).plain(weights.gate, logits);
  router(step.context, {.logits = logits,
                        .bias = weights.bias,
                        .tid2eid = weights.tid2eid,
                        .ids = step.ids,
                        .route_scale = m.route_scale,
                        .normalise = m.normalise_weights,
                        .experts = chosen,
                        .weights = share});
  experts(step.context, {.x = x,
                         .table = weights.routed,
                         .experts = chosen,
                         .weights = share,
                         .swiglu_limit = m.swiglu_limit,
                         .acc = acc});

  // The shared expert sees every token with weight 1.
  const TensorView only = step.scratch.take(DType::kI32, {t, 1});
  const TensorView one = step.scratch.take(DType::kF32, {t, 1});
  std::fill_n(only.as<int32_t>(), t, 0);
  std::fill_n(one.as<float>(), t, 1.f);
  experts(step.context, {.x = x,
                         .table = weights.shared,
                         .experts = only,
                         .weights = one,
                         .swiglu_limit = m.swiglu_limit,
                         .acc = acc});
  return acc;
}

}  // namespace dsv4
