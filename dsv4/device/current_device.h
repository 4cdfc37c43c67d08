// The current device of the calling thread, in which CUDA allocates, launches kernels and makes
// events. A program with one device needs none of this: Device's constructor makes it current.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/device/error.h"

namespace dsv4 {

inline void make_current(const Device& device) {
  cuda_check(cudaSetDevice(device.info().ordinal), "cudaSetDevice");
}

// Makes a device current, and `home` again when it is destroyed.
class VisitDevice {
 public:
  VisitDevice(const Device& device, const Device& home) : home_(home.info().ordinal) {
    make_current(device);
  }
  ~VisitDevice() { cudaSetDevice(home_); }  // it was current a moment ago
  VisitDevice(const VisitDevice&) = delete;
  VisitDevice& operator=(const VisitDevice&) = delete;

 private:
  const int home_;
};

}  // namespace dsv4
