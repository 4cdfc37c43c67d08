#include "tests/harness/gpu.h"

// Builds without CUDA.
namespace dsv4::test {

Device* gpu() {
  return nullptr;
}
void wait(Device&) {
}
void let_gpu_address(void*, size_t) {
}
void forget_pages(void*) {
}

}  // namespace dsv4::test
