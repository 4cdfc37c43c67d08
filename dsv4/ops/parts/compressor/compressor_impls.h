// The implementations of compressor.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/compressor/compressor.h"

namespace dsv4 {

void compressor_cpu(const Context& context, const CompressorArgs& args);

void compressor_cuda(const Context& context, const CompressorArgs& args);

}  // namespace dsv4
