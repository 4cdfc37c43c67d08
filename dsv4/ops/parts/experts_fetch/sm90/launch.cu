// The implementation sm90 of experts_fetch.h: a warp decides, a few CTAs copy. Each launch lets the
// next one start early, which waits itself.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts_fetch/sm90/call.cuh"
#include "dsv4/ops/parts/experts_fetch/sm90/kernels.cuh"

namespace dsv4::experts_fetch_kernel::sm90 {

const char* reject(const Context&, const ExpertsFetchArgs& args) {
  for (const TensorView* view : {&args.memory, &args.transient})
    if (view->dim(1) % 16 != 0 || view->row_stride() % 16 != 0 ||
        reinterpret_cast<uintptr_t>(view->data) % 16 != 0)
      return "places are not at multiples of 16 bytes";
  return nullptr;
}

void run(const Context& context, const ExpertsFetchArgs& args) {
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const Call call = make_call(args, scratch);
  launch(device, "experts_decide", decide_kernel, {.block = kWarp, .pdl = true}, call.decide);
  launch(device, "experts_copy", copy_kernel,
         {.grid = kCtas, .block = kThreads, .shared = sizeof(Shared), .pdl = true}, call.copy);
}

}  // namespace dsv4::experts_fetch_kernel::sm90
