#include "dsv4/ops/parts/router/router.h"

#include "dsv4/base/error.h"

namespace dsv4::router_kernel {

DSV4_IMPL(RouterArgs, cuda)
DSV4_IMPL(RouterArgs, cpu)

constexpr Impl<RouterArgs> kRouter[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, cuda::reject, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RouterArgs>, cpu::run},
};

}  // namespace dsv4::router_kernel

namespace dsv4 {
namespace {

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

constinit const Op<RouterArgs> router{"router", router_kernel::kRouter, check, cost};

}  // namespace dsv4
