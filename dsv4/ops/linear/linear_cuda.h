// CUDA rows of linear.h.

#pragma once

#include "dsv4/ops/linear/linear.h"
#include "dsv4/ops/linear/product_cuda.h"

namespace dsv4 {

// f32 arithmetic on any format, shape and alignment.
void linear_cuda(const Context& context, const LinearArgs& args);

// Tensor cores, for more than a few tokens under kOfficial: weights whose values are bf16 numbers,
// or any that may be rounded to them.
const char* reject_linear_mma(const Context& context, const LinearArgs& args);
const char* reject_linear_mma_rounded(const Context& context, const LinearArgs& args);
void linear_mma(const Context& context, const LinearArgs& args);

}  // namespace dsv4
