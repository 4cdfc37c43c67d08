// The implementations of sample.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/model/sample/sample.h"

namespace dsv4 {

void sample_cpu(const Context& context, const SampleArgs& args);
HostBytes sample_cpu_bytes(const SampleArgs& args);

// A CTA per row, which reads the row from global memory in every pass.
void sample_cuda(const Context& context, const SampleArgs& args);

// A cluster of 8 CTAs per row, which keep the row in shared memory.
const char* sample_sm90_cluster_reject(const Context& context, const SampleArgs& args);
void sample_sm90_cluster(const Context& context, const SampleArgs& args);

}  // namespace dsv4
