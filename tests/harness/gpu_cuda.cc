#include "dsv4/device/device.h"
#include "dsv4/device/error.h"
#include "tests/harness/gpu.h"

namespace dsv4::test {

Device* gpu() {
  static Device* const device = list_devices().empty() ? nullptr : new Device(0);
  return device;
}

ComputeCapability gpu_capability() {
  if (gpu() == nullptr) return {};
  return {.major = gpu()->info().major, .minor = gpu()->info().minor};
}

void wait(Device& device) {
  device.wait();
}

Memory& memory_for(Device* device) {
  return device == nullptr ? host_memory() : device->memory();
}

void let_gpu_address(void* pages, size_t bytes) {
  cuda_check(cudaHostRegister(pages, bytes, cudaHostRegisterMapped), "cudaHostRegister");
}

void forget_pages(void* pages) {
  cuda_check(cudaHostUnregister(pages), "cudaHostUnregister");
}

}  // namespace dsv4::test
