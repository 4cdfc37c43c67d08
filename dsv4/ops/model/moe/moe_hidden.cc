#include "dsv4/ops/model/moe/moe_hidden.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/router/router.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::moe_hidden_kernel {

// One token: the inputs are those of sm90_few, and a launch of moe `sm90_fused` routes and computes
// the routed experts.
DSV4_IMPL(MoeHiddenArgs, sm90_fused)
// The calls that moe `sm90_few` takes: boundary, gate and shared expert are its two launches.
DSV4_IMPL(MoeHiddenArgs, sm90_few)
DSV4_IMPL(MoeHiddenArgs, parts)

constexpr Impl<MoeHiddenArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_fused", Arch::kSm90, true, sm90_fused::reject, sm90_fused::run},
    {"sm90_few", Arch::kSm90, true, sm90_few::reject, sm90_few::run},
    {"parts", Arch::kCuda, true, parts::reject, parts::run},
#endif
    {"parts", Arch::kCpu, true, parts::reject, parts::run},
};

namespace parts {
namespace {

// weights: of the router
ExpertsHiddenArgs routed_hidden(const MoeHiddenArgs& args, const TensorView& weights) {
  return {.x = args.x,
          .stack = args.routed,
          .experts = args.chosen,
          .weights = weights,
          .swiglu_limit = args.swiglu_limit,
          .hidden = args.hidden,
          .mirrors = args.mirrors,
          .first = args.first};
}
ExpertsHiddenArgs shared_hidden(const MoeHiddenArgs& args) {
  return {.x = args.x,
          .stack = args.shared,
          .swiglu_limit = args.swiglu_limit,
          .hidden = args.shared_hidden,
          .mirrors = args.mirrors};
}

bool has_routed(const MoeHiddenArgs& args) {
  return args.hidden.dim(1) > 0 && !args.routed.empty();
}
bool has_shared(const MoeHiddenArgs& args) {
  return args.shared_hidden.dim(1) > 0;
}

}  // namespace

const char* reject(const Context& given, const MoeHiddenArgs& args) {
  if (given.device == nullptr && args.routed.is_image()) return "kernel images of experts";
  if (args.mirrors.empty()) return nullptr;
  Context context = given;
  context.force_impl = {};  // of moe_hidden
  const bool all =
      (!has_routed(args) ||
       accepts(experts_hidden, context, routed_hidden(args, weights_to_come(args.chosen)))) &&
      (!has_shared(args) || accepts(experts_hidden, context, shared_hidden(args)));
  return all ? nullptr : reject_mirrors(context, args);
}

void run(const Context& context, const MoeHiddenArgs& args) {
  if (is_given(args.boundary)) hc_boundary(context, args.boundary);
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const TensorView share = scratch.take(DType::kF32, {args.chosen.dim(0), args.chosen.dim(1)});
  linear(context, {.x = args.x, .weight = args.gate, .out = args.logits});
  router(context, {.logits = args.logits,
                   .bias = args.bias,
                   .tid2eid = args.tid2eid,
                   .ids = args.ids,
                   .route_scale = args.route_scale,
                   .normalize = args.normalize,
                   .experts = args.chosen,
                   .weights = share});
  if (has_routed(args)) experts_hidden(context, routed_hidden(args, share));
  if (has_shared(args)) experts_hidden(context, shared_hidden(args));
}

}  // namespace parts
}  // namespace dsv4::moe_hidden_kernel

namespace dsv4 {

TensorView weights_to_come(const ConstTensorView& chosen) {
  return {TensorMeta::contiguous(DType::kF32, {chosen.dim(0), chosen.dim(1)}), unmapped_address(0)};
}

namespace {

// The shapes of the experts are checked by experts_hidden.
void check(const MoeHiddenArgs& args) {
  Dim t("t"), d("D"), k("k"), i("i"), s("s");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  check_boundary_of(args.x, args.boundary);
  check("gate", args.gate);
  DSV4_CHECK(args.gate.k == *d && args.gate.n == args.routed.num_ids(),
             "gate: [{}, {}] for x of {} and {} experts", args.gate.n, args.gate.k, *d,
             args.routed.num_ids());
  expect("logits", args.logits, {DType::kF32}, {t, args.gate.n});
  expect("chosen", args.chosen, {DType::kI32}, {t, k});
  DSV4_CHECK(1 <= *k && *k <= args.gate.n, "top-{} of {} experts", *k, args.gate.n);
  Dim pairs("t * k", *t * *k);
  expect("hidden", args.hidden, {DType::kF32, DType::kBF16}, {pairs, i});
  expect("shared_hidden", args.shared_hidden, {DType::kF32, DType::kBF16}, {t, s});
}

// routed: that of the routed experts
Cost cost_with(const MoeHiddenArgs& args, const Cost& routed) {
  const auto t = static_cast<double>(args.x.dim(0));
  const auto gate = static_cast<double>(args.gate.bytes());
  Cost cost{.bytes = gate,
            .flops = 2 * t * static_cast<double>(args.gate.n * args.gate.k),
            .weight_bytes = gate};
  cost += routed;
  if (args.shared_hidden.dim(1) > 0)
    cost += experts_hidden.cost({.x = args.x, .stack = args.shared, .hidden = args.shared_hidden});
  if (is_given(args.boundary)) cost += hc_boundary.cost(args.boundary);
  return cost;
}

Cost cost(const MoeHiddenArgs& args) {
  const double each =
      args.routed.is_image()
          ? static_cast<double>(args.routed.images().gate_up.bytes())
          : static_cast<double>(args.routed.empty() ? 0
                                                    : args.routed.file()[0].w1.bytes() +
                                                          args.routed.file()[0].w3.bytes());
  // The part of all pairs that the experts are expected to have.
  const double share =
      static_cast<double>(args.routed.size()) / static_cast<double>(args.routed.num_ids());
  const double weights = each * std::min(share * static_cast<double>(args.hidden.dim(0)),
                                         static_cast<double>(args.routed.size()));
  const double moved =
      static_cast<double>(args.x.bytes()) + share * static_cast<double>(args.hidden.bytes());
  return cost_with(args,
                   {.bytes = weights + moved,
                    .flops = 4.0 * share * static_cast<double>(args.hidden.numel() * args.x.dim(1)),
                    .weight_bytes = weights});
}

}  // namespace

Cost expected_cost(const MoeHiddenArgs& args) {
  return cost_with(args, expected_cost(ExpertsHiddenArgs{.x = args.x,
                                                         .stack = args.routed,
                                                         .experts = args.chosen,
                                                         .weights = args.chosen,
                                                         .hidden = args.hidden}));
}

constinit const Op<MoeHiddenArgs> moe_hidden{"moe_hidden", moe_hidden_kernel::kTable, check, cost};

}  // namespace dsv4
