// The implementations sm90_fused of moe_hidden.h and of moe_output.h: one token, a launch for the
// routed experts of each part.

#include "dsv4/ops/model/moe/sm90_few/launch.cuh"
#include "dsv4/ops/model/moe/sm90_fused/parts_of_ranks_call.cuh"
#include "dsv4/ops/parts/router/router.h"

namespace dsv4 {
namespace {

using Scale = ImageScale;
namespace fused = moe_kernel::sm90_fused;

constexpr void (*kDown[KbitImage::kKinds])(Device&, const fused::DownParams&) = {
    fused::launch_down_with_shared<2, Scale::kE4M4>,
    fused::launch_down_with_shared<3, Scale::kE4M4>,
    fused::launch_down_with_shared<4, Scale::kE4M4>,
    nullptr,
    fused::launch_down_with_shared<4, Scale::kUe8m0>,
    fused::launch_down_with_shared<4, Scale::kE4M3>};

// What both parts refuse. What the halves of the experts refuse comes on top.
template <class Args>
const char* reject_part(const Context& context, const Args& args) {
  if (const char* const why = reject_mirrors(context, args)) return why;
  if (args.chosen.dim(0) != 1) return "for one token";
  if (!args.routed.is_image() || args.routed.is_part()) return "for kernel images of all experts";
  if (args.routed.num_ids() > gemm::experts::kMaxExperts) return "more than 384 experts";
  return args.chosen.dim(1) > fused::kMaxSlots ? "more than 8 experts of a token" : nullptr;
}

// The kernels multiply as those of sm90_few_e4m3, and take the stacks and rows that these take.
template <class Args>
const char* reject_routed(const Op<Args>& op, Context context, const Args& args) {
  context.force_impl = {};  // of the outer op
  return reason_against(impl_of(op, "sm90_few_e4m3"), context, args);
}

}  // namespace

namespace moe_hidden_kernel::sm90_fused {

const char* reject(const Context& context, const MoeHiddenArgs& args) {
  if (const char* const why = reject_part(context, args)) return why;
  if (const char* const why = sm90_few::reject(context, args)) return why;
  if (args.hidden.dim(1) == 0) return "no rows of the routed experts";
  return reject_routed(experts_hidden, context,
                       {.x = args.x,
                        .stack = args.routed,
                        .experts = args.chosen,
                        .weights = weights_to_come(args.chosen),
                        .swiglu_limit = args.swiglu_limit,
                        .hidden = args.hidden});
}

void run(const Context& given, const MoeHiddenArgs& args) {
  Context context = given;
  context.force_impl = {};  // of moe_hidden
  Device& device = *context.device;
  const TensorView weights = weights_to_come(args.chosen);
  router.check(fused::router_args(args, weights));
  sm90_few::run_inputs(context, args);
  if (args.first != nullptr) args.first->logits_are_complete = true;
  if (device.is_dry_run()) return;
  const auto kind = static_cast<size_t>(args.routed.images().gate_up.kind());
  fused::kGateUp[kind](device, gemm::Format::kFp8, fused::make_gate_up_params(args));
}

}  // namespace moe_hidden_kernel::sm90_fused

namespace moe_output_kernel::sm90_fused {

const char* reject(const Context& context, const MoeOutputArgs& args) {
  if (const char* const why = reject_part(context, args)) return why;
  const ConstTensorView& h = args.shared_hidden;
  if (h.dtype != DType::kBF16 || h.row_stride() % 8 != 0 ||
      reinterpret_cast<uintptr_t>(h.data) % 16 != 0)
    return "hidden values of the shared expert that are not bf16 in aligned eights";
  if (const char* const why = reject_routed(experts_output, context,
                                            {.hidden = args.hidden,
                                             .stack = args.routed,
                                             .experts = args.chosen,
                                             .acc = args.acc,
                                             .add = false}))
    return why;
  if (const char* const why = gemm::reject(context, fused::product_of_w2(args))) return why;
  return fused::reject_shape(args, context.device->info().num_sms);
}

void run(const Context& context, const MoeOutputArgs& args) {
  Device& device = *context.device;
  if (device.is_dry_run()) return;
  const auto kind = static_cast<size_t>(args.routed.images().down.kind());
  kDown[kind](device, fused::make_down_params(args, device.info().num_sms, make_tma_map));
}

}  // namespace moe_output_kernel::sm90_fused
}  // namespace dsv4
