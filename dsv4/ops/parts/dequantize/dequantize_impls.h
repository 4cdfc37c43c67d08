// The implementations of dequantize.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/dequantize/dequantize.h"

namespace dsv4 {

void dequantize_cpu(const Context& context, const DequantizeArgs& args);

void dequantize_cuda(const Context& context, const DequantizeArgs& args);

}  // namespace dsv4
