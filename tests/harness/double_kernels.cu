#include "tests/harness/kernels.h"

#include "dsv4/device/launch.cuh"

namespace dsv4::test {
namespace {

template <bool kWaits>
__global__ void double_kernel(DoubleTensors tensors) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kWaits) cudaGridDependencySynchronize();
#endif
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < tensors.d; i += blockDim.x)
    tensors.out[row * tensors.out_stride + i] = 2 * tensors.x[row * tensors.x_stride + i];
}

__global__ void set_kernel(float* to, float value) {
  *to = value;
}
__global__ void add_kernel(float* to, const float* value) {
  *to += *value;
}

}  // namespace

void double_rows(Device& device, const DoubleTensors& tensors, const DoubleLaunch& how) {
  launch(device, "double", how.waits ? double_kernel<true> : double_kernel<false>,
         {.grid = tensors.t, .block = 32, .pdl = how.pdl && device.info().major >= 9}, tensors);
}
void set_element(Device& device, float* to, float value) {
  launch(device, "set", set_kernel, {.block = 1}, to, value);
}
void add_element(Device& device, float* to, const float* value) {
  launch(device, "add", add_kernel, {.block = 1}, to, value);
}

}  // namespace dsv4::test
