#include "dsv4/ops/kbit/repack_scales.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/scale_tiles.h"

namespace dsv4::repack_scales_kernel {

DSV4_IMPL(RepackScalesArgs, cpu)
DSV4_IMPL(RepackScalesArgs, cuda)

constexpr Impl<RepackScalesArgs> kRepackScales[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RepackScalesArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RepackScalesArgs>, cpu::run},
};

}  // namespace dsv4::repack_scales_kernel

namespace dsv4 {
namespace {

void check(const RepackScalesArgs& args) {
  const bool to_tiled = args.direction == Repack::kToTiled;
  const ConstTensorView out = args.scales_out;
  const ConstTensorView &rows = to_tiled ? args.scales_in : out,
                        &tiles = to_tiled ? out : args.scales_in;
  Dim n("n"), groups("groups");
  expect("rows", rows, {DType::kE4M3, DType::kE8M0, DType::kU8}, {n, groups});
  const ScaleTiles shape{*n, *groups};
  expect("tiles", tiles, {DType::kE4M3, DType::kE8M0, DType::kU8},
         {shape.tile_rows(), shape.tile_columns(), ScaleTiles::kBytes});
  DSV4_CHECK(tiles.is_contiguous(), "tiles with gaps");
}

Cost cost(const RepackScalesArgs& args) {
  return {.bytes = static_cast<double>(args.scales_in.bytes() + args.scales_out.bytes())};
}

}  // namespace

constinit const Op<RepackScalesArgs> repack_scales{
    "repack_scales", repack_scales_kernel::kRepackScales, check, cost};

}  // namespace dsv4
