// The implementation sm90 of experts_fetch.h: a warp decides, a few CTAs copy. On one stream each
// launch lets the next one start early, which waits itself.

#include "dsv4/base/error.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/experts_fetch/link_copies.h"
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

namespace {

void launch_copies(Device& device, const CopyParams& copies, bool starts_early) {
  launch(device, "experts_copy", copy_kernel,
         {.grid = kCtas, .block = kThreads, .shared = sizeof(Shared), .pdl = starts_early}, copies);
}

}  // namespace

void run(const Context& context, const ExpertsFetchArgs& args) {
  Device& device = *context.device;
  Scratch& scratch = device.workspace();
  const Scratch::Scope scope(scratch);
  const Call call = make_call(args, scratch);
  launch(device, "experts_decide", decide_kernel, {.block = kWarp, .pdl = true}, call.decide);
  if (args.beside == nullptr) {
    launch_copies(device, call.copy, true);
  } else {
    launch_copies(args.beside->fork(), call.copy, false);
    args.beside->join();
  }
}

}  // namespace dsv4::experts_fetch_kernel::sm90

namespace dsv4 {

int fetch_ctas() {
  return experts_fetch_kernel::sm90::kCtas;
}

void copy_over_link(Device& device, const LinkCopies& copies) {
  namespace sm90 = experts_fetch_kernel::sm90;
  const TensorView& memory = copies.memory;
  DSV4_CHECK(memory.dim(1) % 16 == 0 && memory.row_stride() % 16 == 0 && copies.ctas > 0,
             "places of {} bytes at distances of {}, {} CTAs", memory.dim(1), memory.row_stride(),
             copies.ctas);
  const sm90::CopyParams params{
      .homes = copies.homes.as<int64_t>(),
      .memory = {.memory = memory.data,
                 .transient = memory.data,
                 .distance = memory.row_stride(),
                 .transient_distance = memory.row_stride(),
                 .kept = static_cast<int>(memory.dim(0))},
      .bytes = memory.dim(1),
      .moves = reinterpret_cast<const experts_fetch_kernel::Move*>(copies.moves.data),
      .count = copies.count.as<int32_t>()};
  launch(device, "experts_copy", sm90::copy_kernel,
         {.grid = copies.ctas, .block = sm90::kThreads, .shared = sizeof(sm90::Shared)}, params);
}

}  // namespace dsv4
