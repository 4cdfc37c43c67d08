// What a file of instances/ defines.

#pragma once

#include "dsv4/ops/parts/experts/sm90_few/instances.h"
#include "dsv4/ops/parts/experts/sm90_few/kernel.cuh"
#include "dsv4/ops/parts/experts/sm90_few/launch_product.cuh"

namespace dsv4::experts_few {

template <int K>
void launch_gate_up(Device& device, const Params& p) {
  launch_product<Shared<K>>(device, "experts_gate_up", few_kernel<K, true>, kThreads, p);
}
template <int K>
void launch_down(Device& device, const Params& p) {
  launch_product<Shared<K>>(device, "experts_down", few_kernel<K, false>, kThreads, p);
}

}  // namespace dsv4::experts_few
