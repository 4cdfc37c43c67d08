#include "dsv4/ops/parts/dequantize/dequantize.h"

#include "dsv4/ops/parts/dequantize/dequantize_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<DequantizeArgs> kDequantize[] = {
#if DSV4_CUDA
    {"cuda", Arch::kCuda, true, accept_all<DequantizeArgs>, dequantize_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<DequantizeArgs>, dequantize_cpu},
};

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

constinit const Op<DequantizeArgs> dequantize{"dequantize", kDequantize, check, cost};

}  // namespace dsv4
