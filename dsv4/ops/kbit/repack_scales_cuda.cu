// The implementation cuda of repack_scales.h, one launch. It writes every byte of the tiles, and of
// rows only those of the weight.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/kbit/repack_scales.cuh"
#include "dsv4/ops/kbit/repack_scales.h"

namespace dsv4::repack_scales_kernel::cuda {

void run(const Context& context, const RepackScalesArgs& args) {
  const bool to_tiled = args.direction == Repack::kToTiled;
  const ConstTensorView rows = to_tiled ? args.scales_in : ConstTensorView(args.scales_out);
  const ScaleSides sides{.in = reinterpret_cast<const uint8_t*>(args.scales_in.data),
                         .out = reinterpret_cast<uint8_t*>(args.scales_out.data),
                         .row_stride = rows.row_stride(),
                         .tiles = {rows.dim(0), rows.dim(1)},
                         .to_tiled = to_tiled};
  launch(*context.device, "repack_scales", repack_scales_kernel,
         {.grid = ceil_div(sides.tiles.bytes() / ScaleTiles::kGroups, int64_t{kThreads}),
          .block = kThreads,
          .pdl = true},
         sides);
}

}  // namespace dsv4::repack_scales_kernel::cuda
