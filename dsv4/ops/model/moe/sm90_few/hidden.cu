// The implementation sm90_few of moe_hidden.h: the inputs of moe for few tokens, whose shared
// expert may have some rows of the whole one, then router and routed experts by their ops.

#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/model/moe/sm90_few/launch.cuh"
#include "dsv4/tensor/scratch.h"

namespace dsv4::moe_hidden_kernel::sm90_few {
namespace {

// moe of the same arguments, but for what it adds up in the end.
MoeArgs as_moe(const MoeHiddenArgs& args) {
  return {.x = args.x,
          .boundary = args.boundary,
          .ids = args.ids,
          .gate = args.gate,
          .bias = args.bias,
          .tid2eid = args.tid2eid,
          .routed = args.routed,
          .shared = args.shared,
          .experts_per_token = args.chosen.dim(1),
          .route_scale = args.route_scale,
          .normalize = args.normalize,
          .swiglu_limit = args.swiglu_limit};
}

}  // namespace

const char* reject(const Context& context, const MoeHiddenArgs& args) {
  if (const char* const why = reject_mirrors(context, args)) return why;
  if (args.shared_hidden.dim(1) == 0) return "no rows of the shared expert";
  if (args.hidden.dtype != DType::kBF16 || args.shared_hidden.dtype != DType::kBF16)
    return "hidden values that are not bf16";
  return moe_kernel::sm90_few::reject_inputs(context, as_moe(args));
}

void run_inputs(const Context& context, const MoeHiddenArgs& args) {
  moe_kernel::sm90_few::run_inputs(context, as_moe(args),
                                   {.logits = args.logits,
                                    .hidden = args.shared_hidden,
                                    .y = {},
                                    .chosen = args.chosen,
                                    .share = {}});
}

void run(const Context& given, const MoeHiddenArgs& args) {
  const int64_t t = args.x.dim(0);
  if (t == 0) return;
  Context context = given;
  context.force_impl = {};  // of moe_hidden
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  run_inputs(context, args);
  const TensorView share = scratch.take(DType::kF32, {t, args.chosen.dim(1)});
  router(
      context,
      moe_kernel::sm90_few::router_args(
          as_moe(args),
          {.logits = args.logits, .hidden = {}, .y = {}, .chosen = args.chosen, .share = share}));
  if (args.hidden.dim(1) == 0 || args.routed.empty()) return;
  experts_hidden(context, {.x = args.x,
                           .stack = args.routed,
                           .experts = args.chosen,
                           .weights = share,
                           .swiglu_limit = args.swiglu_limit,
                           .hidden = args.hidden,
                           .first = args.first});
}

}  // namespace dsv4::moe_hidden_kernel::sm90_few
