// The kernels one by one, for callers that finish the boundary themselves (few_gemm/boundary.cuh),
// or that want more of it than hc_boundary.h promises. Arguments: those that
// hc_boundary_sm90_few_reject accepts.

#pragma once

#include "dsv4/ops/model/hc_boundary/sm90_few/params.cuh"
#include "dsv4/ops/op.h"

namespace dsv4::hc_boundary_kernel::sm90_few {

// What the second kernel takes. The partial sums are in the device's workspace, as long as the
// caller's Scratch::Scope lives.
Params launch_mix(const Context& context, const HcBoundaryArgs& args);
void launch_finish(const Context& context, const HcBoundaryArgs& args, const Params& params);

}  // namespace dsv4::hc_boundary_kernel::sm90_few
