// The kernels of this folder, each in one of the files that instance.cu becomes.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"

namespace dsv4::experts_kernel::sm90_few_e4m3 {

using namespace gemm::experts_e4m3;

template <int K, ImageScale kScale, bool kGateUp, int kColumns>
void launch_product(Device& device, const Params& p);

}  // namespace dsv4::experts_kernel::sm90_few_e4m3
