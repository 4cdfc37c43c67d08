#include "tests/harness/gpu.h"

#include "dsv4/tensor/memory.h"
#include "tests/harness/arena.h"

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
void with_workspace(Device&, const TensorView&, const std::function<void(Device&)>&) {
}
void with_capture(Device&, const std::function<void()>&,
                  const std::function<void(const std::function<void()>&)>&) {
}
void after_late_writes(Device&, const std::vector<Write>&, const std::function<void()>&) {
}
void let_gpu_address(void*, size_t) {
}
void forget_pages(void*) {
}

}  // namespace dsv4::test
