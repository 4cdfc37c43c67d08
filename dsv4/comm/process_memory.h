// Device memory that kernels of other processes of this host read and write, by CUDA's handles for
// processes (cudaIpcGetMemHandle). The GPUs may differ, or be one.
//
// A process that opens memory closes it before the one that owns it frees it, or both end.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "dsv4/comm/message.h"

namespace dsv4 {

// Memory of the current device, zeros.
class OfferedMemory {
 public:
  explicit OfferedMemory(int64_t bytes);
  ~OfferedMemory() { cudaFree(data_); }
  OfferedMemory(const OfferedMemory&) = delete;
  OfferedMemory& operator=(const OfferedMemory&) = delete;

  unsigned char* data() const { return data_; }
  // For other processes. Throws kUnsupported where the system gives none.
  cudaIpcMemHandle_t handle() const;

 private:
  unsigned char* data_ = nullptr;
};

// Memory of another process, for kernels of the current device.
class OpenedMemory {
 public:
  // rank: for errors. Throws kUnsupported where the current device does not reach that memory.
  OpenedMemory(const cudaIpcMemHandle_t& handle, int rank);
  ~OpenedMemory() { cudaIpcCloseMemHandle(data_); }
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }

 private:
  void* data_ = nullptr;
};

// Offers memory to the other processes and opens what they offer at the same time. Returns the
// memory of each rank; `own` is that of this one.
std::vector<unsigned char*> open_offered(const OfferedMemory& own, int rank, const Swap& swap,
                                         std::vector<std::unique_ptr<OpenedMemory>>& opened);

}  // namespace dsv4
