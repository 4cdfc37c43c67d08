#include "dsv4/ops/parts/router/router.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/router/router_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<RouterArgs> kRouter[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, router_cuda_reject, router_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RouterArgs>, router_cpu},
};

void check(const RouterArgs& args) {
  Dim t("t"), e("e"), k("k"), v("v");
  expect("logits", args.logits, {DType::kF32}, {t, e});
  if (!args.bias.empty()) expect("bias", args.bias, {DType::kF32}, {e});
  expect("experts", args.experts, {DType::kI32}, {t, k});
  expect("weights", args.weights, {DType::kF32}, {t, k});
  if (args.tid2eid.empty()) {
    DSV4_CHECK(*k <= *e, "top-{} of {} experts", *k, *e);
    return;
  }
  expect("tid2eid", args.tid2eid, {DType::kI32, DType::kI64}, {v, k});
  expect("ids", args.ids, {DType::kI32}, {t});
}

Cost cost(const RouterArgs& args) {
  return {.bytes = static_cast<double>(args.logits.bytes() + args.experts.bytes() +
                                       args.weights.bytes()),
          .flops = 4.0 * static_cast<double>(args.logits.numel())};
}

}  // namespace

constinit const Op<RouterArgs> router{"router", kRouter, check, cost};

}  // namespace dsv4
