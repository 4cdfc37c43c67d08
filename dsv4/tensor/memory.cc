#include "dsv4/tensor/memory.h"

#include <cstdlib>
#include <cstring>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kAlign = 256;

// calloc keeps fresh pages untouched (aligned_alloc + memset would commit them). The extra bytes
// are for alignment and for the address to free, which is stored before the data.
class HostMemory : public Memory {
 public:
  std::byte* allocate(int64_t bytes) override {
    const auto whole = static_cast<size_t>(align_up(bytes, kAlign) + kAlign);
    auto* block = static_cast<std::byte*>(std::calloc(whole + sizeof(void*), 1));
    if (block == nullptr)
      fail(ErrorCode::kResource, "cannot allocate {} bytes of host memory", bytes);
    const auto first = reinterpret_cast<uintptr_t>(block) + sizeof(void*);
    auto* data = reinterpret_cast<std::byte*>(align_up(static_cast<int64_t>(first), kAlign));
    std::memcpy(data - sizeof(void*), &block, sizeof(void*));
    return data;
  }
  void release(std::byte* data) noexcept override {
    if (data == nullptr) return;
    void* block = nullptr;
    std::memcpy(&block, data - sizeof(void*), sizeof(void*));
    std::free(block);
  }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
};

class UnmappedMemory : public Memory {
 public:
  std::byte* allocate(int64_t) override { return unmapped_address(0); }
  void release(std::byte*) noexcept override {}
  void upload(std::byte*, const std::byte*, int64_t bytes) override { refuse(bytes); }
  void download(std::byte*, const std::byte*, int64_t bytes) override { refuse(bytes); }

 private:
  [[noreturn]] static void refuse(int64_t bytes) {
    fail(ErrorCode::kInvalidArgument, "copy of {} bytes of a tensor without memory", bytes);
  }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

Memory& unmapped_memory() {
  static UnmappedMemory memory;
  return memory;
}

}  // namespace dsv4
