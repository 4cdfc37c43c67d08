// CUDA rows of experts.h: plan, Q8 of x, gate and up, SwiGLU, down, combine; a launch each.

#pragma once

#include "dsv4/ops/experts/experts.h"

namespace dsv4 {

// The experts of a table must lie at equal distances and have equal formats, gate and up alike;
// `reject_experts_cuda` says what is not so.
const char* reject_experts_cuda(const Context& context, const ExpertsArgs& args);
void experts_cuda(const Context& context, const ExpertsArgs& args);

// Tensor cores, where experts have more than a few tokens, under kOfficial; see linear_cuda.h.
const char* reject_experts_mma(const Context& context, const ExpertsArgs& args);
const char* reject_experts_mma_rounded(const Context& context, const ExpertsArgs& args);
void experts_mma(const Context& context, const ExpertsArgs& args);

}  // namespace dsv4
