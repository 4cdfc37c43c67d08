// One block of a product by the kernels of one decoder, whose unrolled loops take long to compile
// on every instruction set: the build compiles this file once for each decoder.
// Instances: DecodeF32 | DecodeBF16 | DecodeF16 | DecodeFp8 | DecodeMxfp4 | DecodeNvfp4
// Instances: DecodeKbit<2> | DecodeKbit<3> | DecodeKbit<4> | DecodeKbit<5>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/gemm/cpu/multiply_instance.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/ops/gemm/cpu/fused-inl.h"
#include "dsv4/ops/gemm/cpu/tiled-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

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

template void MultiplyFormat<DSV4_INSTANCE>(const Block& block);

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
