// Managed memory that the host fills and the GPU then uses, at the same addresses.

#pragma once

#include <cuda_runtime.h>

#include <map>

#include "dsv4/tensor/memory.h"

namespace dsv4::bench {

class ManagedMemory : public Memory {
 public:
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;

  // Moves all allocated pages to the GPU. They stay until the host accesses them.
  void to_device(int ordinal, cudaStream_t stream) const;

 private:
  std::map<std::byte*, size_t> sizes_;
};

}  // namespace dsv4::bench
