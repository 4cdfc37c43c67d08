// CUDA rows of linear.h.

#pragma once

#include "dsv4/ops/linear/linear.h"
#include "dsv4/ops/linear/product_cuda.h"

namespace dsv4 {

// f32 arithmetic on any format, shape and alignment.
void linear_cuda(const Context& context, const LinearArgs& args);

}  // namespace dsv4
