#include "dsv4/ops/model/moe/moe_output.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/projection.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::moe_output_kernel {

// One token: a launch for all of it.
DSV4_IMPL(MoeOutputArgs, sm90_fused)
DSV4_IMPL(MoeOutputArgs, parts)

constexpr Impl<MoeOutputArgs> kTable[] = {
#if DSV4_CUDA
    {"sm90_fused", Arch::kSm90, true, sm90_fused::reject, sm90_fused::run, 0x1p-13},
    {"parts", Arch::kCuda, true, accept_all<MoeOutputArgs>, parts::run},
#endif
    {"parts", Arch::kCpu, true, parts::reject, parts::run},
};

namespace parts {

const char* reject(const Context& context, const MoeOutputArgs& args) {
  if (const char* const why = reject_mirrors(context, args)) return why;
  return args.routed.is_image() ? "kernel images of experts" : nullptr;
}

// The product of the routed experts comes first and the sum last: then nothing stands between the
// exchange of the hidden values and a kernel that can read its weights while that waits.
void run(const Context& context, const MoeOutputArgs& args) {
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const DType act = activation_dtype(context);
  const TensorView rows = scratch.take(act, {args.hidden.dim(0), args.acc.dim(1)});
  experts_output(context, {.hidden = args.hidden,
                           .stack = args.routed,
                           .experts = args.chosen,
                           .rows = rows,
                           .first = args.first});
  const TensorView shared_y = scratch.take(act, {args.acc.dim(0), args.acc.dim(1)});
  {
    const ProjectionScope codes(context);
    Projection(context, args.shared_hidden).into(args.shared.file()[0].w2, shared_y);
  }
  experts_sum(context, {.rows = rows,
                        .experts = args.chosen,
                        .num_experts = args.routed.num_ids(),
                        .acc = args.acc,
                        .add = false,
                        .addend = shared_y,
                        .mirrors = args.mirrors});
}

}  // namespace parts
}  // namespace dsv4::moe_output_kernel

namespace dsv4 {
namespace {

// The shapes of the routed experts are checked by experts_output.
void check(const MoeOutputArgs& args) {
  Dim t("t"), n("n"), k("k"), inner("I"), shared("S");
  expect("acc", args.acc, {DType::kF32}, {t, n});
  expect("chosen", args.chosen, {DType::kI32}, {t, k});
  expect("logits", args.logits, {DType::kF32}, {t, args.routed.num_ids()});
  expect("hidden", args.hidden, {DType::kF32, DType::kBF16}, {*t * *k, inner});
  expect("shared_hidden", args.shared_hidden, {DType::kF32, DType::kBF16}, {t, shared});
  DSV4_CHECK(!args.routed.is_part() && !args.routed.empty(), "a sum over {} of {} experts",
             args.routed.size(), args.routed.num_ids());
  DSV4_CHECK(args.shared.size() == 1 && !args.shared.is_image(), "{} shared experts",
             args.shared.size());
  const WeightView& w2 = args.shared.file()[0].w2;
  check("w2 of the shared expert", w2);
  DSV4_CHECK(w2.n == *n && w2.k == *shared, "w2 of the shared expert: want [{}, {}], got [{}, {}]",
             *n, *shared, w2.n, w2.k);
}

ExpertsOutputArgs routed_output(const MoeOutputArgs& args) {
  return {.hidden = args.hidden,
          .stack = args.routed,
          .experts = args.chosen,
          .acc = args.acc,
          .add = false};
}

// routed: that of the routed experts
Cost cost_with(const MoeOutputArgs& args, Cost routed) {
  const WeightView& w2 = args.shared.file()[0].w2;
  const auto bytes = static_cast<double>(w2.bytes());
  routed += {.bytes = bytes + static_cast<double>(args.shared_hidden.bytes()),
             .flops = 2.0 * static_cast<double>(args.shared_hidden.dim(0) * w2.n * w2.k),
             .weight_bytes = bytes};
  return routed;
}

// A call on a device cannot read ids.
Cost cost(const MoeOutputArgs& args) {
  const double each = args.routed.is_image()
                          ? static_cast<double>(args.routed.images().down.bytes())
                          : static_cast<double>(args.routed.file()[0].w2.bytes());
  const double weights =
      each * static_cast<double>(std::min(args.hidden.dim(0), args.routed.size()));
  return cost_with(args,
                   {.bytes = weights + static_cast<double>(args.hidden.bytes() + args.acc.bytes()),
                    .flops = 2.0 * static_cast<double>(args.hidden.numel() * args.acc.dim(1)),
                    .weight_bytes = weights});
}

}  // namespace

Cost expected_cost(const MoeOutputArgs& args) {
  return cost_with(args, expected_cost(routed_output(args)));
}

constinit const Op<MoeOutputArgs> moe_output{"moe_output", moe_output_kernel::kTable, check, cost};

}  // namespace dsv4
