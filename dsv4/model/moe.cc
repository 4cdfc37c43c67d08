#include "dsv4/model/moe.h"

#include "dsv4/model/projection.h"
#include "dsv4/ops/router/router.h"

namespace dsv4 {

TensorView moe(Step& step, const MoeWeights& weights, const ConstTensorView& x) {
  const ModelConfig& m = step.config;
  const int64_t t = step.num_tokens;
  const TensorView acc = step.scratch.take(DType::kF32, {t, m.hidden_size});

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
                        .normalize = m.normalize_weights,
                        .experts = chosen,
                        .weights = share});
  experts(step.context, {.x = x,
                         .table = weights.routed,
                         .experts = chosen,
                         .weights = share,
                         .swiglu_limit = m.swiglu_limit,
                         .acc = acc,
                         .add = false});
  // The shared expert processes every token with weight 1.
  experts(step.context,
          {.x = x, .table = weights.shared, .swiglu_limit = m.swiglu_limit, .acc = acc});
  return acc;
}

}  // namespace dsv4
