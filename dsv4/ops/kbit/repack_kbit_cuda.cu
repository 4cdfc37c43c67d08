// The implementation cuda of repack_kbit.h: a launch for planes and one for scales.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/kbit/repack_kbit.cuh"
#include "dsv4/ops/kbit/repack_kbit.h"

namespace dsv4::repack_kbit_kernel::cuda {
namespace {

using namespace kbit_packing;

template <class T>
void repack(Device& device, const RepackKbitArgs& args, const ConstTensorView& in,
            const TensorView& out, int width) {
  const bool to_tiled = args.direction == Repack::kToTiled;
  const ConstTensorView flat = to_tiled ? in : ConstTensorView(out);
  const RepackSides<T> sides{.in = in.as<T>(),
                             .out = out.as<T>(),
                             .flat_stride = flat.row_stride(),
                             .n = flat.dim(0),
                             .flat_width = flat.dim(1),
                             .width = width,
                             .to_tiled = to_tiled};
  launch(device, "repack_kbit", repack_kernel<T>,
         {.grid = ceil_div(sides.n * 2 * width, int64_t{kRepackThreads}),
          .block = kRepackThreads,
          .grid_y = ceil_div(sides.flat_width, int64_t{2} * width),
          .pdl = true},
         sides);
}

}  // namespace

void run(const Context& context, const RepackKbitArgs& args) {
  repack<uint32_t>(*context.device, args, args.planes_in, args.planes_out, args.bits);
  repack<uint8_t>(*context.device, args, args.scales_in, args.scales_out, 1);
}

}  // namespace dsv4::repack_kbit_kernel::cuda
