// A CUDA event: a mark on a stream that the host can wait for, and read the time of.

#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "dsv4/device/error.h"

namespace dsv4 {

class Event {
 public:
  Event() {
    cudaEvent_t event = nullptr;
    cuda_check(cudaEventCreate(&event), "cudaEventCreate");
    event_.reset(event);
  }
  void record(cudaStream_t stream) { cuda_check(cudaEventRecord(event_.get(), stream), "event"); }
  // Until the stream has come to the last record(); at once when there was none.
  void wait() const { cuda_check(cudaEventSynchronize(event_.get()), "waiting for the GPU"); }
  // Seconds from `earlier` to this; both have been reached.
  double seconds_since(const Event& earlier) const {
    float ms = 0;
    cuda_check(cudaEventElapsedTime(&ms, earlier.event_.get(), event_.get()), "event time");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  struct Destroy {
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy> event_;
};

}  // namespace dsv4
