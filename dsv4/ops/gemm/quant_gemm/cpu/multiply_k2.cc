// The CPU kernels for 2-bit weights.

#include "dsv4/ops/gemm/quant_gemm/cpu/multiply.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/gemm/quant_gemm/cpu/multiply_k2.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/ops/gemm/quant_gemm/cpu/multiply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::quant_gemm::HWY_NAMESPACE {

void MultiplyK2(const Block& block) {
  MultiplyFormat<DecodeKbit<2>>(block);
}

}  // namespace dsv4::quant_gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::quant_gemm {

HWY_EXPORT(MultiplyK2);

void multiply_k2(const Block& block) {
  HWY_DYNAMIC_DISPATCH(MultiplyK2)(block);
}

}  // namespace dsv4::quant_gemm
#endif  // HWY_ONCE
