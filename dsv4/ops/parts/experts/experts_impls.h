// The implementations of experts.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4 {

const char* experts_cpu_reject(const Context& context, const ExpertsArgs& args);
void experts_cpu(const Context& context, const ExpertsArgs& args);
HostBytes experts_cpu_bytes(const ExpertsArgs& args);

// Kernel images of k-bit weights under kOfficial: products for up to 8 tokens of an expert at a
// time, weights rounded to f16.
const char* experts_sm90_few_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_few(const Context& context, const ExpertsArgs& args);
// The same with codebooks of at most 4 bits on the e4m3 grid: weights are exact.
const char* experts_sm90_few_e4m3_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_few_e4m3(const Context& context, const ExpertsArgs& args);
// The same for rows of up to 7,168 columns.
const char* experts_sm90_wide_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_wide(const Context& context, const ExpertsArgs& args);
// The same images, weights rounded to bf16: a matrix is decoded once for up to 128 tokens.
const char* experts_sm90_mma_reject(const Context& context, const ExpertsArgs& args);
void experts_sm90_mma(const Context& context, const ExpertsArgs& args);
// Whether this context can use all of them, whatever the experts are.
bool reads_images(const Context& context);
bool sm90_few_takes(const ExpertImages& images);   // its shapes
bool sm90_wide_takes(const ExpertImages& images);  // its shapes and codebooks

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
