// The first kernel on its own, for kernels that finish the boundary themselves
// (few_gemm/boundary.cuh).

#pragma once

#include "dsv4/ops/hc_boundary/sm90_few/params.cuh"
#include "dsv4/ops/op.h"

namespace dsv4::hc_boundary_kernel::sm90_few {

// What the second kernel takes. The partial sums are in the device's workspace, as long as the
// caller's Scratch::Scope lives. Arguments: those that hc_boundary_sm90_few_reject accepts.
Params launch_mix(const Context& context, const HcBoundaryArgs& args);

}  // namespace dsv4::hc_boundary_kernel::sm90_few
