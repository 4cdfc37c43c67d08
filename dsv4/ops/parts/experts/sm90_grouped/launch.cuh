// The products of weights of K bits, each K in one of the files that
// instance.cu becomes.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

namespace grouped = gemm::grouped;

// Those that the parameters say: both in one launch, or one.
template <int K>
void launch_products(Device& device, const grouped::Params& p);

}  // namespace dsv4::experts_kernel::sm90_grouped
