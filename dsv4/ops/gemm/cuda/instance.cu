// All kernels of one decoder.
// Instances: DecodeF32 | DecodeBF16 | DecodeF16 | DecodeFp8 | DecodeMxfp4 | DecodeNvfp4
// Instances: DecodeKbit<2> | DecodeKbit<3> | DecodeKbit<4> | DecodeKbit<5>

#include "dsv4/ops/gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/cuda/kernels.h"
#include "dsv4/ops/gemm/cuda/mma.cuh"
#include "dsv4/ops/gemm/cuda/small_m.cuh"

namespace dsv4::gemm::cuda {

template void gemv<DSV4_INSTANCE>(Device& device, const Problem& problem);
template void small_m<DSV4_INSTANCE>(Device& device, const Problem& problem);
template void mma<DSV4_INSTANCE>(Device& device, const Problem& problem);

}  // namespace dsv4::gemm::cuda
