// The implementations of sample.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/sample/sample.h"

namespace dsv4 {

void sample_cpu(const Context& context, const SampleArgs& args);
HostBytes sample_cpu_bytes(const SampleArgs& args);

void sample_cuda(const Context& context, const SampleArgs& args);

}  // namespace dsv4
