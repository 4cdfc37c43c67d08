// multiply() of kernel.h for the weight format of decoder F. Included once per Highway target by
// the file of each format (multiply_fp8.cc and so on).

#if defined(DSV4_OPS_QUANT_GEMM_CPU_MULTIPLY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_QUANT_GEMM_CPU_MULTIPLY_INL_H_
#undef DSV4_OPS_QUANT_GEMM_CPU_MULTIPLY_INL_H_
#else
#define DSV4_OPS_QUANT_GEMM_CPU_MULTIPLY_INL_H_
#endif

#include "dsv4/ops/gemm/quant_gemm/cpu/fused-inl.h"
#include "dsv4/ops/gemm/quant_gemm/cpu/tiled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::quant_gemm::HWY_NAMESPACE {

template <class F>
void MultiplyFormat(const Block& block) {
  switch (block.tokens) {
    case 1:
      return Fused<F, 1>(block);
    case 2:
      return Fused<F, 2>(block);
    case 3:
      return Fused<F, 3>(block);
    default:
      return Tiled<F>(block);
  }
}

}  // namespace dsv4::quant_gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_QUANT_GEMM_CPU_MULTIPLY_INL_H_
