// CUDA row of dequantize.h.

#pragma once

#include "dsv4/ops/dequantize/dequantize.h"

namespace dsv4 {

void dequantize_cuda(const Context& context, const DequantizeArgs& args);

}  // namespace dsv4
