#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/router/router.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::moe_kernel::parts {

const char* reject(const Context&, const MoeArgs& args) {
  return args.routed.is_image() ? "kernel images of experts" : nullptr;
}

void run(const Context& context, const MoeArgs& args) {
  if (is_given(args.boundary)) hc_boundary(context, args.boundary);
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const int64_t t = args.x.dim(0), k = args.experts_per_token;
  const TensorView logits = scratch.take(DType::kF32, {t, args.gate.n});
  const TensorView chosen = scratch.take(DType::kI32, {t, k});
  const TensorView share = scratch.take(DType::kF32, {t, k});
  linear(context, {.x = args.x, .weight = args.gate, .out = logits});
  router(context, {.logits = logits,
                   .bias = args.bias,
                   .tid2eid = args.tid2eid,
                   .ids = args.ids,
                   .route_scale = args.route_scale,
                   .normalize = args.normalize,
                   .experts = chosen,
                   .weights = share});
  fetch_chosen(context, args.fetch, chosen);
  experts(context, {.x = args.x,
                    .stack = args.routed,
                    .experts = chosen,
                    .weights = share,
                    .swiglu_limit = args.swiglu_limit,
                    .acc = args.acc,
                    .add = false});
  // The shared expert processes every token with weight 1.
  experts(context,
          {.x = args.x, .stack = args.shared, .swiglu_limit = args.swiglu_limit, .acc = args.acc});
}

}  // namespace dsv4::moe_kernel::parts
