// The CPU kernels for MXFP4 weights.

#include "dsv4/ops/gemm/quant_gemm/cpu/multiply.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/gemm/quant_gemm/cpu/multiply_mxfp4.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/ops/gemm/quant_gemm/cpu/multiply-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::quant_gemm::HWY_NAMESPACE {

void MultiplyMxfp4(const Block& block) {
  MultiplyFormat<DecodeMxfp4>(block);
}

}  // namespace dsv4::quant_gemm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::quant_gemm {

HWY_EXPORT(MultiplyMxfp4);

void multiply_mxfp4(const Block& block) {
  HWY_DYNAMIC_DISPATCH(MultiplyMxfp4)(block);
}

}  // namespace dsv4::quant_gemm
#endif  // HWY_ONCE
