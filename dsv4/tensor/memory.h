// Where tensors are stored: host memory, or a memory of device/ (device memory, page-locked host
// memory).
//
// Buffers, scratch, caches and uploads take a Memory, so none of them depends on devices.

#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

class Memory {
 public:
  virtual ~Memory() = default;
  // 256-byte aligned and zero-filled; throws kResource with the size when there is not enough
  // memory.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  // Copies between this memory and ordinary host memory; complete when the call returns.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

// The system provides zero pages lazily, so a large reservation uses no memory until it is touched.
Memory& host_memory();

}  // namespace dsv4
