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

// Addresses without memory, for dry runs, in which only the shapes of tensors matter. An access
// traps: no program maps these addresses.
Memory& unmapped_memory();
inline std::byte* unmapped_address(int64_t offset) {
  constexpr uintptr_t kBase = uintptr_t{1} << 62;  // in no address space of x86-64 or arm64
  return reinterpret_cast<std::byte*>(kBase + static_cast<uintptr_t>(offset));
}

}  // namespace dsv4
