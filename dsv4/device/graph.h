// A CUDA graph: a recorded list of kernels that is launched as one.

#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>

#include "dsv4/device/device.h"

namespace dsv4 {

class Graph {
 public:
  // Records what `enqueue` puts on the device's stream; nothing of it runs. `enqueue` may not wait
  // for the device or allocate from it.
  static Graph capture(Device& device, const std::function<void()>& enqueue);

  // Records anew: other addresses and values in the same kernels keep the executable graph, which
  // is several times faster than making one; other kernels make a new one.
  void update(Device& device, const std::function<void()>& enqueue);
  void launch(Device& device) const;
  size_t num_kernels() const { return kernels_; }

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  void instantiate(Device& device, cudaGraph_t recorded);

  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Destroy> exec_;
  size_t kernels_ = 0;
};

}  // namespace dsv4
