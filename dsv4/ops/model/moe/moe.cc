#include "dsv4/ops/model/moe/moe.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/moe/moe_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<MoeArgs> kMoe[] = {
#if DSV4_CUDA
    {"sm90_fused", Arch::kSm90, true, moe_sm90_fused_reject, moe_sm90_fused},
    {"sm90_few", Arch::kSm90, true, moe_sm90_few_reject, moe_sm90_few},
    {"parts", Arch::kCuda, true, accept_all<MoeArgs>, moe_parts},
#endif
    {"parts", Arch::kCpu, true, moe_host_parts_reject, moe_parts},
};

// Shapes of bias, tid2eid and the experts: implementations call check() of router and experts.
void check(const MoeArgs& args) {
  Dim t("t"), d("D");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  check_boundary_of(args.x, args.boundary);
  expect("acc", args.acc, {DType::kF32}, {t, d});
  check("gate", args.gate);
  DSV4_CHECK(args.gate.k == *d, "gate: {} columns for x of {}", args.gate.k, *d);
  const auto e = args.routed.size();
  DSV4_CHECK(args.gate.n == e, "gate: {} rows for {} experts", args.gate.n, e);
  DSV4_CHECK(args.shared.size() == 1, "{} shared experts, want one", args.shared.size());
  DSV4_CHECK(args.experts_per_token >= 1 && args.experts_per_token <= e, "top-{} of {} experts",
             args.experts_per_token, e);
}

double values(const ExpertStack& stack, int64_t d) {
  return static_cast<double>(3 * stack.inner() * d);
}

// routed: bytes of the routed experts that are read.
Cost cost_with(const MoeArgs& args, double routed) {
  const auto t = static_cast<double>(args.x.dim(0)),
             chosen = t * static_cast<double>(args.experts_per_token);
  const int64_t d = args.x.dim(1);
  const auto shared = static_cast<double>(t > 0 ? args.shared.expert_bytes(0) : 0);
  const double weights = static_cast<double>(args.gate.bytes()) + routed + shared;
  Cost cost{.bytes = weights + static_cast<double>(args.x.bytes() + args.acc.bytes()),
            .flops = 2 * (t * static_cast<double>(args.gate.n * args.gate.k) +
                          chosen * values(args.routed, d) + t * values(args.shared, d)),
            .weight_bytes = weights};
  if (is_given(args.boundary)) cost += hc_boundary.cost(args.boundary);
  return cost;
}

// The router's choices are not known before the call: the experts of t tokens are counted as t * k
// different ones, up to all.
Cost cost(const MoeArgs& args) {
  const int64_t chosen = args.x.dim(0) * args.experts_per_token;
  const auto active = static_cast<double>(std::min(chosen, args.routed.size()));
  return cost_with(args, active * static_cast<double>(args.routed.expert_bytes(0)));
}

}  // namespace

Cost expected_cost(const MoeArgs& args) {
  return cost_with(args, expected_weight_bytes(args.routed, args.x.dim(0), args.experts_per_token));
}

constinit const Op<MoeArgs> moe{"moe", kMoe, check, cost};

}  // namespace dsv4
