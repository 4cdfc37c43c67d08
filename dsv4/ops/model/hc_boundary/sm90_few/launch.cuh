// The first kernel alone: block_input.cu launches another one in place of the second. Arguments:
// those that reject() accepts.

#pragma once

#include "dsv4/ops/model/hc_boundary/sm90_few/params.cuh"
#include "dsv4/ops/op.h"

namespace dsv4::hc_boundary_kernel::sm90_few {

const char* reject(const Context& context, const HcBoundaryArgs& args);

// What the second kernel takes. The partial sums are in the device's workspace, as long as the
// caller's Scratch::Scope lives.
Params launch_mix(const Context& context, const HcBoundaryArgs& args);

}  // namespace dsv4::hc_boundary_kernel::sm90_few
