#include "dsv4/ops/kbit/repack_kbit.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"

namespace dsv4::repack_kbit_kernel {

DSV4_IMPL(RepackKbitArgs, cpu)
DSV4_IMPL(RepackKbitArgs, cuda)

constexpr Impl<RepackKbitArgs> kRepackKbit[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<RepackKbitArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<RepackKbitArgs>, cpu::run},
};

}  // namespace dsv4::repack_kbit_kernel

namespace dsv4 {
namespace {

void check(const RepackKbitArgs& args) {
  DSV4_CHECK(is_kbit(args.bits), "want 2 to 5 bits, got {}", args.bits);
  const bool to_tiled = args.direction == Repack::kToTiled;
  const ConstTensorView planes_out = args.planes_out, scales_out = args.scales_out;
  const ConstTensorView& flat_scales = to_tiled ? args.scales_in : scales_out;
  Dim n("n"), blocks("k/32");
  expect("flat scales", flat_scales, {DType::kU8}, {n, blocks});
  expect("flat planes", to_tiled ? args.planes_in : planes_out, {DType::kI32},
         {n, *blocks * args.bits});
  DSV4_CHECK(*n % KbitTiles::kTileN == 0, "n={} is not a multiple of {}", *n, KbitTiles::kTileN);
  const ConstTensorView& planes = to_tiled ? planes_out : args.planes_in;
  const ConstTensorView& scales = to_tiled ? scales_out : args.scales_in;
  const int64_t tiles = ceil_div(*blocks, 2);
  expect("tiled planes", planes, {DType::kI32}, {tiles, n, int64_t{2} * args.bits});
  expect("tiled scales", scales, {DType::kU8}, {tiles, n, 2});
  DSV4_CHECK(planes.is_contiguous() && scales.is_contiguous(), "tiled tensors with gaps");
}

Cost cost(const RepackKbitArgs& args) {
  return {.bytes = static_cast<double>(args.planes_in.bytes() + args.scales_in.bytes() +
                                       args.planes_out.bytes() + args.scales_out.bytes())};
}

}  // namespace

constinit const Op<RepackKbitArgs> repack_kbit{"repack_kbit", repack_kbit_kernel::kRepackKbit,
                                               check, cost};

}  // namespace dsv4
