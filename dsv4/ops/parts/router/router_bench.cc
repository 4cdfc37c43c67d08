#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/router/router.h"

namespace dsv4 {
namespace {

struct Case {
  bench::Tensor logits, bias, experts, weights;
  RouterArgs args;

  Case(int64_t t, int64_t e, int64_t k)
      : logits(DType::kF32, {t, e}),
        bias(DType::kF32, {e}),
        experts(DType::kI32, {t, k}),
        weights(DType::kF32, {t, k}) {
    bench::fill(logits, 2);
    bench::fill(bias, 0.1f);
    args = {.logits = logits,
            .bias = bias,
            .route_scale = 1.5f,
            .experts = experts,
            .weights = weights};
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    bench::register_impls<RouterArgs>(fmt::format("router/{} tokens 6 of 256", t), router,
                                      [=] { return std::make_shared<Case>(t, 256, 6); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
