// The kernels of this folder for one K each, compiled in files of their own.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/config.cuh"

namespace dsv4::experts_few_e4m3 {

template <int K, int kColumns>
void launch_gate_up(Device& device, const Params& p);
template <int K>
void launch_down(Device& device, const Params& p);

}  // namespace dsv4::experts_few_e4m3
