#include "tests/harness/gpu.h"

#include "dsv4/tensor/memory.h"

// Builds without CUDA.
namespace dsv4::test {

Device* gpu() {
  return nullptr;
}
ComputeCapability gpu_capability() {
  return {};
}
void wait(Device&) {
}
Memory& memory_for(Device*) {
  return host_memory();
}
void let_gpu_address(void*, size_t) {
}
void forget_pages(void*) {
}

}  // namespace dsv4::test
