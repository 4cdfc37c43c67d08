// Where tensors live: host memory, or what device/ offers (device memory, page-locked host memory).
//
// Buffers, scratch, caches and uploads take a Memory, so that none of them knows about devices.

#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4 {

class Memory {
 public:
  virtual ~Memory() = default;
  // 256-byte aligned and zero-filled; throws kResource naming the size when there is no room.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  // Copies between this memory and ordinary host memory; done when it returns.
  virtual void upload(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void download(std::byte* to, const std::byte* from, int64_t bytes) = 0;
};

// Zero pages come lazily from the system, so a large reservation costs nothing until it is touched.
Memory& host_memory();

}  // namespace dsv4
