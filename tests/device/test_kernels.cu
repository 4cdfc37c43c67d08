#include "tests/device/test_kernels.h"

#include "dsv4/device/launch.cuh"

namespace dsv4::test {
namespace {

__global__ void trap_kernel() {
  __trap();
}

__global__ void store_kernel(int32_t* to, int32_t value) {
  *to = value;
}

}  // namespace

void kill_device(Device& device) {
  launch(device, "trap", trap_kernel, {.grid = 1, .block = 1});
}

void store_value(Device& device, int32_t* to, int32_t value) {
  launch(device, "store", store_kernel, {.grid = 1, .block = 1}, to, value);
}

}  // namespace dsv4::test
