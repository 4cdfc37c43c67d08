// CUDA row of compressor.h.

#pragma once

#include "dsv4/ops/compressor/compressor.h"

namespace dsv4 {

void compressor_cuda(const Context& context, const CompressorArgs& args);

}  // namespace dsv4
