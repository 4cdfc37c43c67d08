// The implementation sm90_few of experts.h: list of pairs, gate and up with SwiGLU, down, combine;
// one launch each.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/experts/cuda/steps.h"
#include "dsv4/ops/experts/experts_impls.h"
#include "dsv4/ops/experts/sm90_few/call.cuh"
#include "dsv4/ops/experts/sm90_few/instances.h"
#include "dsv4/ops/experts/sm90_few/list_pairs.cuh"

namespace dsv4 {
namespace {

// With more pairs of an expert on average, kernels that decode a matrix once for up to 128 pairs
// are faster.
constexpr int64_t kMostPairs = 32;

// Calls body with K as a constant.
template <class Body>
void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 2:
      return body.template operator()<2>();
    case 3:
      return body.template operator()<3>();
    case 4:
      return body.template operator()<4>();
    default:
      return body.template operator()<5>();
  }
}

void list_pairs(Device& device, const ExpertsArgs& args, const experts_few::PairLists& lists) {
  const experts_few::Choices choices{.experts = args.experts.as<int32_t>(),
                                     .weights = args.weights.as<float>(),
                                     .expert_stride = args.experts.row_stride(),
                                     .weight_stride = args.weights.row_stride(),
                                     .pairs = static_cast<int>(args.x.dim(0) * slots(args)),
                                     .slots = static_cast<int>(slots(args))};
  launch(device, "experts_list", experts_few::list_pairs_kernel,
         {.block = experts_few::kListThreads, .pdl = true}, choices, lists);
}

}  // namespace

bool reads_images(const Context& context) {
  return context.device != nullptr && context.numerics == Numerics::kOfficial &&
         context.device->info().major == 9;
}

bool sm90_few_takes(const ExpertImages& images) {
  return std::max(images.gate_up.units_along_k(), images.down.units_along_k()) <=
         experts_few::kMathWarps;
}

const char* experts_sm90_few_reject(const Context& context, const ExpertsArgs& args) {
  if (!args.stack.is_image()) return "for kernel images";
  if (!reads_images(context)) return "for official numerics on Hopper";
  if (args.experts.empty()) return "for routed experts";
  if (args.stack.size() > experts_few::kMaxExperts) return "more than 384 experts";
  if (!sm90_few_takes(args.stack.images())) return "rows of more than 4096 columns";
  if (args.x.dtype != DType::kBF16 || args.x.row_stride() % 2 != 0 ||
      reinterpret_cast<uintptr_t>(args.x.data) % 4 != 0)
    return "x is not bf16 in aligned pairs";
  const bool free_choice = context.force_impl.empty() && !context.need_batch_invariant;
  if (free_choice && args.x.dim(0) * slots(args) > kMostPairs * args.stack.size())
    return "many pairs for each expert";
  return nullptr;
}

void experts_sm90_few(const Context& context, const ExpertsArgs& args) {
  if (args.x.dim(0) == 0) return;
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const experts_few::Call call = experts_few::make_call(args, device.info().num_sms, scratch);
  list_pairs(device, args, call.lists);
  with_bits(args.stack.images().gate_up.bits,
            [&]<int K>() { experts_few::launch_gate_up<K>(device, call.gate_up); });
  with_bits(args.stack.images().down.bits,
            [&]<int K>() { experts_few::launch_down<K>(device, call.down); });
  experts_combine(device, {.y = call.y,
                           .pair_of = call.lists.pair_of,
                           .slots = slots(args),
                           .add = args.add,
                           .acc = args.acc});
}

}  // namespace dsv4
