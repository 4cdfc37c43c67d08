// The implementations of experts.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/experts/experts.h"

namespace dsv4 {

void experts_cpu(const Context& context, const ExpertsArgs& args);
HostBytes experts_cpu_bytes(const ExpertsArgs& args);

// The shared expert in FP8 blocks, 64 tokens or more: products by cuBLASLt.
const char* experts_cublaslt_fp8_reject(const Context& context, const ExpertsArgs& args);
void experts_cublaslt_fp8(const Context& context, const ExpertsArgs& args);

// f32 arithmetic. The experts must lie at equal distances in memory and have equal formats, and
// gate and up must have the same format; the reason says which of these does not hold.
const char* experts_cuda_reject(const Context& context, const ExpertsArgs& args);
void experts_cuda(const Context& context, const ExpertsArgs& args);

// Tensor cores under kOfficial, when experts have more than a few tokens; formats as in
// linear_impls.h.
const char* experts_cuda_mma_reject(const Context& context, const ExpertsArgs& args);
const char* experts_cuda_mma_rounded_reject(const Context& context, const ExpertsArgs& args);
void experts_cuda_mma(const Context& context, const ExpertsArgs& args);

}  // namespace dsv4
