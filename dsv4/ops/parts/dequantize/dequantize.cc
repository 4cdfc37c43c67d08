#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4::dequantize_kernel {

DSV4_IMPL(DequantizeArgs, cpu)
DSV4_IMPL(DequantizeArgs, cuda)

constexpr Impl<DequantizeArgs> kDequantize[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<DequantizeArgs>, cuda::run},
#endif
    {"cpu", Arch::kCpu, true, accept_all<DequantizeArgs>, cpu::run},
};

}  // namespace dsv4::dequantize_kernel

namespace dsv4 {
namespace {

void check(const DequantizeArgs& args) {
  check("weight", args.weight);
  Dim n("n", args.weight.n), k("k", args.weight.k);
  expect("out", args.out, {DType::kF32, DType::kBF16, DType::kF16}, {n, k});
}

Cost cost(const DequantizeArgs& args) {
  return {.bytes = static_cast<double>(args.weight.bytes() + args.out.bytes()),
          .flops = 2.0 * static_cast<double>(args.out.numel())};
}

}  // namespace

constinit const Op<DequantizeArgs> dequantize{"dequantize", dequantize_kernel::kDequantize, check,
                                              cost};

}  // namespace dsv4
