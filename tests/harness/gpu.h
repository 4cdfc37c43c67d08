// The GPU of the tests, if this build and this machine have one.
//
// Tensors of an Arena are host pages that the GPU is allowed to address (registered with the
// driver), under the same pointers. So CUDA implementations take the very arguments that CPU
// implementations take, and the unreadable page after a tensor stops a kernel that reads or writes
// past its end.

#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "dsv4/tensor/tensor.h"

namespace dsv4 {
class Device;
class Memory;
}  // namespace dsv4

namespace dsv4::test {

// Null: no CUDA build, or no GPU. Made at the first call; lives to the end of the program.
Device* gpu();
// Compute capability of that GPU; 0.0: there is none.
struct ComputeCapability {
  int major = 0, minor = 0;
};
ComputeCapability gpu_capability();

void wait(Device& device);  // until what was enqueued has finished

struct Write;  // arena.h

// The functions below are called with a GPU only.

// Calls `call` with a device on the same stream that takes temporaries from `workspace` only.
void with_workspace(Device& device, const TensorView& workspace,
                    const std::function<void(Device&)>& call);
// Captures what `enqueue` enqueues into a graph, and calls `use` with what launches the graph.
void with_capture(Device& device, const std::function<void()>& enqueue,
                  const std::function<void(const std::function<void()>& replay)>& use);
// Enqueues a kernel that lets the next one start at once but does its writes only when `enqueue`
// has returned; then calls `enqueue`, and waits for everything.
void after_late_writes(Device& device, const std::vector<Write>& writes,
                       const std::function<void()>& enqueue);

// What implementations on `device` read at full speed; host memory for null.
Memory& memory_for(Device* device);

// Whole pages. Only with a GPU.
void let_gpu_address(void* pages, size_t bytes);
void forget_pages(void* pages);

}  // namespace dsv4::test
