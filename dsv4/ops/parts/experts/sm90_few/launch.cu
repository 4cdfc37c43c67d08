// The implementation sm90_few of experts.h, and what sm90_few_e4m3 shares with it: list of pairs,
// gate and up with SwiGLU, down, combine; one launch each.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/experts_impls.h"
#include "dsv4/ops/parts/experts/sm90_few/instances.h"
#include "dsv4/ops/parts/experts/sm90_few/launch.cuh"
#include "dsv4/ops/parts/experts/sm90_few/list_pairs.cuh"

namespace dsv4 {
namespace {

// With more pairs of an expert on average, kernels that decode a matrix once for up to 128 pairs
// are faster.
constexpr int64_t kMostPairs = 32;

}  // namespace

bool reads_images(const Context& context) {
  return context.device != nullptr && context.numerics == Numerics::kOfficial &&
         context.device->info().major == 9;
}

bool sm90_few_takes(const ExpertImages& images) {
  return std::max(images.gate_up.units_along_k(), images.down.units_along_k()) <=
         experts_few::kMathWarps;
}

namespace experts_few {

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (!args.stack.is_image()) return "for kernel images";
  if (!reads_images(context)) return "for official numerics on Hopper";
  if (args.experts.empty()) return "for routed experts";
  if (args.stack.size() > experts_few::kMaxExperts) return "more than 384 experts";
  if (args.x.dtype != DType::kBF16 || args.x.row_stride() % 2 != 0 ||
      reinterpret_cast<uintptr_t>(args.x.data) % 4 != 0)
    return "x is not bf16 in aligned pairs";
  const bool free_choice = context.force_impl.empty() && !context.need_batch_invariant;
  if (free_choice && args.x.dim(0) * slots(args) > kMostPairs * args.stack.size())
    return "many pairs for each expert";
  return nullptr;
}

void run(const Context& context, const ExpertsArgs& args, const Kernels& kernels) {
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const Call call = make_call(args, device.info().num_sms, kernels.reader, scratch);
  const ExpertImages& images = args.stack.images();
  if (call.needs_list())
    launch(device, "experts_list", list_pairs_kernel, {.block = kListThreads, .pdl = true},
           choices_of(args), call.lists);
  kernels.gate_up[images.gate_up.bits - kMinKbit](device, call.gate_up);
  kernels.down[images.down.bits - kMinKbit](device, call.down);
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.pair_of,
                           .slots = slots(args),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

}  // namespace experts_few

const char* experts_sm90_few_reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = experts_few::reject(context, args)) return reason;
  return sm90_few_takes(args.stack.images()) ? nullptr : experts_few::kTooWide;
}

void experts_sm90_few(const Context& context, const ExpertsArgs& args) {
  using namespace experts_few;
  run(context, args,
      {.reader = kReader,
       .gate_up = {launch_gate_up<2>, launch_gate_up<3>, launch_gate_up<4>, launch_gate_up<5>},
       .down = {launch_down<2>, launch_down<3>, launch_down<4>, launch_down<5>}});
}

}  // namespace dsv4
