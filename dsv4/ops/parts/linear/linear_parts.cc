// The implementation parts of linear.h: quantize_q8, then the call without quantize_x.

#include "dsv4/base/bits.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/quant/quant.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4::linear_kernel::parts {

const char* reject(const Context&, const LinearArgs& args) {
  return args.quantize_x ? nullptr : "nothing to quantize";
}

void run(const Context& context, const LinearArgs& args) {
  Scratch& scratch = workspace(context);
  const Scratch::Scope scope(scratch);
  const int64_t t = args.x.dim(0), k = args.x.dim(1);
  const TensorView codes = scratch.take(DType::kE4M3, {t, k});
  const TensorView scales = scratch.take(DType::kE8M0, {t, ceil_div(k, kActivationGroup)});
  quantize_q8(context, {.x = args.x, .codes = codes, .scales = scales, .group = kActivationGroup});
  LinearArgs quantized = args;
  quantized.x = codes, quantized.x_scale = scales, quantized.quantize_x = false;
  linear(context, quantized);
}

}  // namespace dsv4::linear_kernel::parts
