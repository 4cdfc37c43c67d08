// The implementation sm90_few of experts.h, and what sm90_few_e4m3 shares with it: list of pairs,
// gate and up with SwiGLU, down, combine; one launch each.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/experts/list_pairs.cuh"
#include "dsv4/ops/parts/experts/cuda/steps.h"
#include "dsv4/ops/parts/experts/sm90_few/config.cuh"
#include "dsv4/ops/parts/experts/sm90_few/launch.cuh"

namespace dsv4 {

bool reads_images(const Context& context) {
  return context.device != nullptr && context.numerics == Numerics::kOfficial &&
         context.device->info().major == 9;
}

bool sm90_few_takes(const ExpertImages& images) {
  return !images.gate_up.is_fp4() && !images.down.is_fp4() &&
         std::max(images.gate_up.units_along_k(), images.down.units_along_k()) <=
             gemm::experts::kMathWarps;
}

}  // namespace dsv4

namespace dsv4::experts_kernel {
DSV4_IMPL(ExpertsArgs, sm90_many_e4m3)
DSV4_IMPL(ExpertsArgs, sm90_grouped)
}  // namespace dsv4::experts_kernel
namespace dsv4::experts_hidden_kernel {
DSV4_IMPL(ExpertsHiddenArgs, sm90_many_e4m3)
DSV4_IMPL(ExpertsHiddenArgs, sm90_grouped)
}  // namespace dsv4::experts_hidden_kernel
namespace dsv4::experts_output_kernel {
DSV4_IMPL(ExpertsOutputArgs, sm90_many_e4m3)
DSV4_IMPL(ExpertsOutputArgs, sm90_grouped)
}  // namespace dsv4::experts_output_kernel

namespace dsv4::experts_kernel::sm90_few {
namespace {

// With more pairs of an expert on average, kernels that decode a matrix once for many of them are
// faster: sm90_many_e4m3, which has the bits of sm90_few_e4m3, or sm90_grouped.
constexpr int64_t kMostPairs = 8;

// many, grouped: why these refuse the call
bool prefers_others(const Context& context, int64_t pairs, const ExpertStack& stack,
                    const char* many, const char* grouped) {
  if (!context.force_impl.empty() || pairs <= kMostPairs * stack.num_ids()) return false;
  return many == nullptr || (!context.need_batch_invariant && grouped == nullptr);
}

}  // namespace

const char* reject_call(const Context& context, const ExpertsArgs& args) {
  if (!args.stack.is_image()) return "for kernel images";
  if (!reads_images(context)) return "for official numerics on Hopper";
  if (args.experts.empty()) return "for routed experts";
  if (args.stack.size() > kMaxExperts) return "more than 384 experts";
  if (const char* const reason = reject_other_models(args)) return reason;
  if (args.x.dtype != DType::kBF16 || args.x.row_stride() % 2 != 0 ||
      reinterpret_cast<uintptr_t>(args.x.data) % 4 != 0)
    return "x is not bf16 in aligned pairs";
  if (prefers_others(context, args.x.dim(0) * slots(args), args.stack,
                     sm90_many_e4m3::reject(context, args), sm90_grouped::reject(context, args)))
    return "many pairs for each expert";
  return nullptr;
}

namespace {

void launch_list(Device& device, const Choices& choices, const PairLists& lists,
                 bool starts_early = true) {
  launch(device, "experts_list", list_pairs_kernel<>, {.block = kListThreads, .pdl = starts_early},
         choices, lists);
}

void launch_products(Device& device, const ExpertsArgs& args, const Call& call,
                     const Kernels& kernels) {
  const ExpertImages& images = args.stack.images();
  kernels.gate_up[static_cast<size_t>(images.gate_up.kind())](device, call.gate_up);
  kernels.down[static_cast<size_t>(images.down.kind())](device, call.down);
}

// The pairs of a turn are listed before it waits for its experts. What comes first of all follows a
// kernel that others may wait for, and does not start early.
void launch_turns(Device& device, const ExpertsArgs& args, const Call& all, ExpertTurns& turns,
                  const Kernels& kernels) {
  for (int turn = 0; turn < turns.count(); ++turn) {
    Call call = all.of_turn(turn, turns.busy_sms(turn));
    if (call.needs_list()) launch_list(device, choices_of(args, turn), call.lists, turn > 0);
    const bool waits = turns.begin(turn);
    call.gate_up.starts_early = !waits && (call.needs_list() || turn > 0);
    launch_products(device, args, call, kernels);
    turns.end(turn);
  }
}

}  // namespace

void run_kernels(const Context& context, const ExpertsArgs& args, const Kernels& kernels) {
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const Call call = make_call(args, device.info().num_sms, kernels.reader, scratch);
  if (ExpertTurns* const turns = args.stack.images().turns; turns == nullptr) {
    if (call.needs_list()) launch_list(device, choices_of(args), call.lists);
    launch_products(device, args, call, kernels);
  } else {
    launch_turns(device, args, call, *turns, kernels);
  }
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.pair_of,
                           .slots = slots(args),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

namespace {

// x: what the kernels quantize. many, grouped: why sm90_many_e4m3 and sm90_grouped refuse the call
const char* reject_half_of(const Context& context, const ExpertStack& stack,
                           const ConstTensorView& experts, const ConstTensorView& x,
                           const char* many, const char* grouped) {
  if (const char* const why = reject_stack(context, stack, experts)) return why;
  if (x.dtype != DType::kBF16 || x.row_stride() % 2 != 0 ||
      reinterpret_cast<uintptr_t>(x.data) % 4 != 0)
    return "activations are not bf16 in aligned pairs";
  const int64_t pairs = experts.dim(0) * experts.dim(1);
  return prefers_others(context, pairs, stack, many, grouped) ? "many pairs for each expert"
                                                              : nullptr;
}

}  // namespace

const char* reject_half(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* const why = reject_mirrors(context, args)) return why;
  if (args.hidden.dtype != DType::kBF16) return "hidden values that are not bf16";
  return reject_half_of(context, args.stack, args.experts, args.x,
                        experts_hidden_kernel::sm90_many_e4m3::reject(context, args),
                        experts_hidden_kernel::sm90_grouped::reject(context, args));
}

const char* reject_half(const Context& context, const ExpertsOutputArgs& args) {
  if (!args.rows.empty() && args.rows.dtype != DType::kBF16) return "rows that are not bf16";
  return reject_half_of(context, args.stack, args.experts, args.hidden,
                        experts_output_kernel::sm90_many_e4m3::reject(context, args),
                        experts_output_kernel::sm90_grouped::reject(context, args));
}

void run_hidden(const Context& context, const ExpertsHiddenArgs& args, const Kernels& kernels) {
  if (args.hidden.dim(0) == 0) return;
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const int ctas = device.info().num_sms;
  const HalfCall call = make_hidden_call(args, ctas, kernels.reader, device.workspace());
  if (call.needs_list() && args.first != nullptr && args.first->keep != nullptr) {
    const HalfCall second = make_kept_list(args, ctas, kernels.reader, *args.first);
    launch(device, "experts_list of halves", list_halves_kernel<>,
           {.grid = 2, .block = kListThreads, .pdl = true}, call.choices, call.lists,
           second.choices, second.lists);
  } else if (call.needs_list()) {
    launch_list(device, call.choices, call.lists);
  }
  kernels.gate_up[static_cast<size_t>(args.stack.images().gate_up.kind())](device, call.product);
  if (args.first != nullptr) args.first->ids_are_complete = kernels.gate_up_waits_first;
}

void run_output(const Context& context, const ExpertsOutputArgs& args, const Kernels& kernels) {
  if (args.hidden.dim(0) == 0) return;
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const HalfCall call =
      make_output_call(args, device.info().num_sms, kernels.reader, device.workspace());
  if (call.launches_list()) launch_list(device, call.choices, call.lists);
  kernels.down[static_cast<size_t>(args.stack.images().down.kind())](device, call.product);
  if (!args.rows.empty()) return;
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.pair_of,
                           .slots = args.experts.dim(1),
                           .add = args.add,
                           .addend = args.addend,
                           .acc = args.acc});
}

namespace {

constexpr Kernels kKernels{.reader = kReader,
                           .gate_up = {launch_product<2, true>, launch_product<3, true>,
                                       launch_product<4, true>, launch_product<5, true>},
                           .down = {launch_product<2, false>, launch_product<3, false>,
                                    launch_product<4, false>, launch_product<5, false>}};

}  // namespace

const char* reject(const Context& context, const ExpertsArgs& args) {
  if (const char* const reason = reject_call(context, args)) return reason;
  return sm90_few_takes(args.stack.images()) ? nullptr : "FP4, or rows of more than 4096 columns";
}

void run(const Context& context, const ExpertsArgs& args) {
  run_kernels(context, args, kKernels);
}

}  // namespace dsv4::experts_kernel::sm90_few

namespace dsv4 {
namespace {

using namespace experts_kernel::sm90_few;
constexpr const char* kTooWide = "FP4, or rows of more than 4096 columns";

bool takes(const KbitImage& image) {
  return !image.is_fp4() && image.units_along_k() <= gemm::experts::kMathWarps;
}

}  // namespace

namespace experts_hidden_kernel::sm90_few {

const char* reject(const Context& context, const ExpertsHiddenArgs& args) {
  if (const char* why = reject_half(context, args)) return why;
  return takes(args.stack.images().gate_up) ? nullptr : kTooWide;
}

void run(const Context& context, const ExpertsHiddenArgs& args) {
  run_hidden(context, args, kKernels);
}

}  // namespace experts_hidden_kernel::sm90_few

namespace experts_output_kernel::sm90_few {

const char* reject(const Context& context, const ExpertsOutputArgs& args) {
  if (const char* why = reject_half(context, args)) return why;
  return takes(args.stack.images().down) ? nullptr : kTooWide;
}

void run(const Context& context, const ExpertsOutputArgs& args) {
  run_output(context, args, kKernels);
}

}  // namespace experts_output_kernel::sm90_few
}  // namespace dsv4
