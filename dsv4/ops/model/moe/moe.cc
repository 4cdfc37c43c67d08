#include "dsv4/ops/model/moe/moe.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/experts_fetch/experts_fetch.h"

namespace dsv4::moe_kernel {

// One token of a call that sm90_few takes, whose routed experts are read by experts
// `sm90_few_e4m3`: three launches for the whole block, with the bits of sm90_few. Two tokens, where
// sm90_few is as fast, only when forced. Not where experts are fetched: its products route
// themselves.
DSV4_IMPL(MoeArgs, sm90_fused)
// Up to 64 tokens under kOfficial, a shared expert in FP8 and a gate in BF16, on Hopper: two
// launches of gemm/sm90 before the routed experts. Up to 8 tokens with a shared expert in k4-e4m3
// or k5-e4m3.
DSV4_IMPL(MoeArgs, sm90_few)
// In host memory parts::reject refuses kernel images: only devices read them.
DSV4_IMPL(MoeArgs, parts)

constexpr Impl<MoeArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_fused", Arch::kSm90, true, sm90_fused::reject, sm90_fused::run},
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run},
    {"parts", Arch::kCuda, true, accept_all<MoeArgs>, parts::run},
#endif
    {"parts", Arch::kCpu, true, parts::reject, parts::run},
};

}  // namespace dsv4::moe_kernel

namespace dsv4 {
namespace {

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
  if (args.fetch != nullptr)
    DSV4_CHECK(args.fetch->homes.dim(0) == e, "homes of {} of {} experts", args.fetch->homes.dim(0),
               e);
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

void fetch_chosen(const Context& context, const ExpertsFetchArgs* fetch,
                  const ConstTensorView& chosen) {
  if (fetch == nullptr) return;
  ExpertsFetchArgs args = *fetch;
  args.experts = chosen;
  experts_fetch(context, args);
}

Cost expected_cost(const MoeArgs& args) {
  return cost_with(args, expected_weight_bytes(args.routed, args.x.dim(0), args.experts_per_token));
}

constinit const Op<MoeArgs> moe{"moe", moe_kernel::kTable, check, cost};

}  // namespace dsv4
