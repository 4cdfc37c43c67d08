// moe for one token, or two, in three launches: the inputs of sm90_few; routing, gate and up of the
// routed experts and w2 of the shared one; down and the sums (docs/kernels/moe_fused.md).

#include "dsv4/ops/model/moe/sm90_few/launch.cuh"
#include "dsv4/ops/model/moe/sm90_fused/call.cuh"

namespace dsv4::moe_kernel::sm90_fused {
namespace {

using Scale = ImageScale;

constexpr void (*kDown[KbitImage::kKinds])(Device&, int, const DownParams&) = {
    launch_down<2, Scale::kE4M4>,  launch_down<3, Scale::kE4M4>,
    launch_down<4, Scale::kE4M4>,  nullptr,
    launch_down<4, Scale::kUe8m0>, launch_down<4, Scale::kE4M3>};

}  // namespace

const char* reject(const Context& given, const MoeArgs& args) {
  if (const char* why = sm90_few::reject(given, args)) return why;
  if (args.fetch != nullptr) return "experts are fetched between the router and the products";
  if (args.routed.is_image() && args.routed.images().turns != nullptr) return "experts in turns";
  if (given.force_impl.empty() && args.x.dim(0) > 1) return "for one token";
  // Only shapes are asked for. A view without an address would count as empty.
  auto* const never_read = reinterpret_cast<std::byte*>(uintptr_t{256});
  const Intermediates temporaries =
      make_intermediates(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
        return TensorView(TensorMeta::contiguous(dtype, shape), never_read);
      });
  Context context = given;
  context.force_impl = {};  // of moe
  if (const char* why = reject_experts_e4m3(context, routed_args(args, temporaries))) return why;
  return reject_shape(args, temporaries, given.device->info().num_sms, given.need_batch_invariant);
}

void run(const Context& given, const MoeArgs& args) {
  if (args.x.dim(0) == 0) return;
  experts.check({.x = args.x, .stack = args.shared, .acc = args.acc});
  Context context = given;
  context.force_impl = {};  // of moe
  Device& device = *context.device;
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const Intermediates temporaries =
      make_intermediates(args, [&](DType dtype, std::initializer_list<int64_t> shape) {
        return scratch.take(dtype, shape);
      });
  router.check(sm90_few::router_args(args, temporaries.inputs));
  experts.check(routed_args(args, temporaries));
  sm90_few::run_inputs(context, args, temporaries.inputs);
  if (device.is_dry_run()) return;
  const ExpertImages& images = args.routed.images();
  kGateUp[images.gate_up.kind()](device, format_of_shared(args, temporaries.inputs),
                                 make_gate_up_params(args, temporaries, device.info().num_sms,
                                                     make_tma_map, context.need_batch_invariant));
  kDown[images.down.kind()](device, static_cast<int>(args.x.dim(0)),
                            make_down_params(args, temporaries));
}

}  // namespace dsv4::moe_kernel::sm90_fused
