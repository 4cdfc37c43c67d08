// What a file of instances/ defines.

#pragma once

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/experts/sm90_few_e4m3/instances.h"
#include "dsv4/ops/experts/sm90_few_e4m3/kernel.cuh"

namespace dsv4::experts_few_e4m3 {

template <int K>
void launch_gate_up(Device& device, const Params& p) {
  launch(
      device, "experts_gate_up", few_kernel<K, true>,
      {.grid = device.info().num_sms, .block = kThreads, .shared = sizeof(Shared<K>), .pdl = true},
      p);
}
template <int K>
void launch_down(Device& device, const Params& p) {
  launch(
      device, "experts_down", few_kernel<K, false>,
      {.grid = device.info().num_sms, .block = kThreads, .shared = sizeof(Shared<K>), .pdl = true},
      p);
}

}  // namespace dsv4::experts_few_e4m3
