// The kernels of this folder for one K each, compiled in files of their own.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/model/moe/sm90_fused/config.cuh"

namespace dsv4::moe_kernel::sm90_fused {

// shared: the format of the shared expert's w2.
template <int K>
void launch_gate_up(Device& device, few_gemm::Format shared, const GateUpParams& p);
template <int K>
void launch_down(Device& device, int tokens, const DownParams& p);

}  // namespace dsv4::moe_kernel::sm90_fused
