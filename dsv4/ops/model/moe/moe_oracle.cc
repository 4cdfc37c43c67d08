// The oracles of linear, router and experts; logits, weights and acc are stored in f32 in between.

#include "dsv4/ops/model/moe/moe_case.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/halves_case.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "dsv4/ops/parts/router/router_case.h"

namespace dsv4 {
namespace {

struct Routed {
  Buffer logits;         // [t, e] f32
  Buffer chosen, share;  // [t, k] I32, f32
};

// Args: MoeArgs or MoeHiddenArgs, which have the router's arguments in members of equal names.
template <class Args>
Routed route(const Args& args, int64_t k) {
  DSV4_CHECK(!is_given(args.boundary), "{}", "the oracle takes x");
  const int64_t t = args.x.dim(0);
  Buffer logits = oracle::stored(DType::kF32, {t, args.gate.n},
                                 linear_oracle({.x = args.x, .weight = args.gate}));
  const Buffer shape(DType::kI32, {t, k});
  const RouterAnswer answer = router_oracle({.logits = logits,
                                             .bias = args.bias,
                                             .tid2eid = args.tid2eid,
                                             .ids = args.ids,
                                             .route_scale = args.route_scale,
                                             .normalize = args.normalize,
                                             .experts = shape});
  return {std::move(logits), oracle::stored(DType::kI32, {t, k}, answer.experts),
          oracle::stored(DType::kF32, {t, k}, answer.weights)};
}

}  // namespace

std::vector<double> moe_oracle(const Context& context, const MoeArgs& args) {
  const int64_t t = args.x.dim(0), d = args.x.dim(1);
  const Routed routed = route(args, args.experts_per_token);
  const Buffer zeros(DType::kF32, {t, d});
  const Buffer acc = oracle::stored(DType::kF32, {t, d},
                                    experts_oracle(context, {.x = args.x,
                                                             .stack = args.routed,
                                                             .experts = routed.chosen,
                                                             .weights = routed.share,
                                                             .swiglu_limit = args.swiglu_limit,
                                                             .acc = zeros}));
  return experts_oracle(
      context, {.x = args.x, .stack = args.shared, .swiglu_limit = args.swiglu_limit, .acc = acc});
}

MoeHiddenAnswer moe_hidden_oracle(const Context& context, const MoeHiddenArgs& args) {
  const Routed routed = route(args, args.chosen.dim(1));
  MoeHiddenAnswer answer;
  const auto* const logits = routed.logits.as<float>();
  answer.logits.assign(logits, logits + routed.logits.view().numel());
  for (int64_t i = 0; i < args.x.dim(0); ++i)
    for (int64_t j = 0; j < args.chosen.dim(1); ++j)
      answer.chosen.push_back(routed.chosen.view().row<int32_t>(i)[j]);
  answer.hidden = experts_hidden_oracle(context, {.x = args.x,
                                                  .stack = args.routed,
                                                  .experts = routed.chosen,
                                                  .weights = routed.share,
                                                  .swiglu_limit = args.swiglu_limit,
                                                  .hidden = args.hidden});
  answer.shared_hidden = experts_hidden_oracle(context, {.x = args.x,
                                                         .stack = args.shared,
                                                         .swiglu_limit = args.swiglu_limit,
                                                         .hidden = args.shared_hidden});
  return answer;
}

}  // namespace dsv4
