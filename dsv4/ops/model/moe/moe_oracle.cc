// The oracles of linear, router and experts; logits, weights and acc are stored in f32 in between.

#include "dsv4/ops/model/moe/moe_case.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "dsv4/ops/parts/router/router_case.h"

namespace dsv4 {

std::vector<double> moe_oracle(const Context& context, const MoeArgs& args) {
  DSV4_CHECK(!is_given(args.boundary), "{}", "the oracle takes x");
  const int64_t t = args.x.dim(0), d = args.x.dim(1), k = args.experts_per_token;
  const Buffer logits = oracle::stored(DType::kF32, {t, args.gate.n},
                                       linear_oracle({.x = args.x, .weight = args.gate}));
  const Buffer shape(DType::kI32, {t, k});
  const RouterAnswer routed = router_oracle({.logits = logits,
                                             .bias = args.bias,
                                             .tid2eid = args.tid2eid,
                                             .ids = args.ids,
                                             .route_scale = args.route_scale,
                                             .normalize = args.normalize,
                                             .experts = shape});
  const Buffer chosen = oracle::stored(DType::kI32, {t, k}, routed.experts);
  const Buffer share = oracle::stored(DType::kF32, {t, k}, routed.weights);
  const Buffer zeros(DType::kF32, {t, d});
  const Buffer acc = oracle::stored(DType::kF32, {t, d},
                                    experts_oracle(context, {.x = args.x,
                                                             .stack = args.routed,
                                                             .experts = chosen,
                                                             .weights = share,
                                                             .swiglu_limit = args.swiglu_limit,
                                                             .acc = zeros}));
  return experts_oracle(
      context, {.x = args.x, .stack = args.shared, .swiglu_limit = args.swiglu_limit, .acc = acc});
}

}  // namespace dsv4
