#include "tests/device/kill_device.h"

#include "dsv4/device/launch.cuh"

namespace dsv4::test {
namespace {

__global__ void trap_kernel() {
  __trap();
}

}  // namespace

void kill_device(Device& device) {
  launch(device, "trap", trap_kernel, {.grid = 1, .block = 1});
}

}  // namespace dsv4::test
