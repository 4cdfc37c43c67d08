// The two kinds of memory of the CUDA runtime, as tensor/memory.h wants them.

#pragma once

#include <cuda_runtime.h>

#include <map>
#include <mutex>

#include "dsv4/tensor/memory.h"

namespace dsv4 {

// Plain cudaMalloc: engines allocate once, at the start. Zeroing and copies are ordered with the
// stream, so a buffer may be released and its successor used without waiting in between.
class DeviceMemory : public Memory {
 public:
  explicit DeviceMemory(cudaStream_t stream) : stream_(stream) {}
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;

 private:
  cudaStream_t stream_;
};

// Page-locked host memory: copies to and from the device run at full speed and without a detour.
class PinnedMemory : public Memory {
 public:
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;
};

// Page-locked host memory of gigabytes that kernels read at the host's addresses, from any device;
// `ordinal` is the one whose context locks it, in whatever thread.
// Pages are zeros that the system gives when they are locked; several threads may allocate at a
// time. Throws kResource, naming what is locked so far and the limits of the system, when it locks
// no more.
class MappedMemory : public PinnedMemory {
 public:
  explicit MappedMemory(int ordinal) : ordinal_(ordinal) {}
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;

 private:
  const int ordinal_;
  std::mutex mutex_;
  std::map<std::byte*, int64_t> sizes_;
  int64_t locked_ = 0;
};

}  // namespace dsv4
