// The GPU of the tests, if this build and this machine have one.
//
// Tensors of an Arena are host pages that the GPU is allowed to address (registered with the
// driver), under the same pointers. So CUDA rows take the very arguments that CPU rows take, and
// the unreadable page behind a tensor stops a kernel that reads or writes past its end.

#pragma once

#include <cstddef>

namespace dsv4 {
class Device;
class Memory;
}  // namespace dsv4

namespace dsv4::test {

// Null: no CUDA build, or no GPU. Made at the first call; lives to the end of the program.
Device* gpu();
// Of that GPU; 0.0: there is none.
struct ComputeCapability {
  int major = 0, minor = 0;
};
ComputeCapability gpu_capability();

void wait(Device& device);  // until the rows that were run have finished

// What rows on `device` read at full speed; host memory for null.
Memory& memory_for(Device* device);

// Whole pages. Only with a GPU.
void let_gpu_address(void* pages, size_t bytes);
void forget_pages(void* pages);

}  // namespace dsv4::test
