// The CPU kernels for F16 weights.

#include "dsv4/ops/gemm/quant_gemm/cpu/multiply.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/gemm/quant_gemm/cpu/multiply_f16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/ops/gemm/quant_gemm/cpu/multiply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::quant_gemm::HWY_NAMESPACE {

void MultiplyF16(const Block& block) {
  MultiplyFormat<DecodeF16>(block);
}

}  // namespace dsv4::quant_gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::quant_gemm {

HWY_EXPORT(MultiplyF16);

void multiply_f16(const Block& block) {
  HWY_DYNAMIC_DISPATCH(MultiplyF16)(block);
}

}  // namespace dsv4::quant_gemm
#endif  // HWY_ONCE
