// What a file of instances/ defines.

#pragma once

#include "dsv4/ops/parts/experts/sm90_few/launch_product.cuh"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/instances.h"
#include "dsv4/ops/parts/experts/sm90_few_e4m3/kernel.cuh"

namespace dsv4::experts_few_e4m3 {

template <int K, int kColumns>
void launch_gate_up(Device& device, const Params& p) {
  experts_few::launch_product<SharedOf<K, kColumns>>(device, "experts_gate_up",
                                                     few_kernel<K, true, kColumns>, kThreads, p);
}
template <int K>
void launch_down(Device& device, const Params& p) {
  experts_few::launch_product<SharedOf<K, kMaxColumns>>(
      device, "experts_down", few_kernel<K, false, kMaxColumns>, kThreads, p);
}

}  // namespace dsv4::experts_few_e4m3
