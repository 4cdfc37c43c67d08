// When each kernel ran on the GPU, inside graphs too: activity records of CUPTI, loaded at the
// first use. Kernels are not kept apart, so those that start early (LaunchShape::pdl) are seen to.
//
// It says when a kernel started and ended, not what its CTAs waited for.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dsv4 {

struct KernelSpan {
  std::string name;  // of the function, without namespaces and template arguments
  int64_t start_ns = 0, end_ns = 0;
  int64_t ctas = 0;
};

// Null: traces can be taken. Otherwise why not: no CUPTI, or an older one than this build knows.
const char* trace_reject();
// Every kernel of the process from now on. Throws kUnsupported where trace_reject() has a reason.
void start_trace();
// The kernels since then, in order of their start; the GPU must be idle.
std::vector<KernelSpan> stop_trace();

}  // namespace dsv4
