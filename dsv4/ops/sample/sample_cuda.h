// CUDA row of sample.h.

#pragma once

#include "dsv4/ops/sample/sample.h"

namespace dsv4 {

void sample_cuda(const Context& context, const SampleArgs& args);

}  // namespace dsv4
