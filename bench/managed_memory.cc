#include "bench/managed_memory.h"

#include <algorithm>
#include <cstring>

#include "dsv4/device/error.h"

namespace dsv4::bench {

std::byte* ManagedMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  cuda_check(cudaMallocManaged(&data, size), "cudaMallocManaged");
  std::memset(data, 0, size);
  auto* start = static_cast<std::byte*>(data);
  sizes_[start] = size;
  return start;
}

void ManagedMemory::release(std::byte* data) noexcept {
  sizes_.erase(data);
  cudaFree(data);
}

void ManagedMemory::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void ManagedMemory::download(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void ManagedMemory::to_device(int ordinal, cudaStream_t stream) const {
  const cudaMemLocation gpu{.type = cudaMemLocationTypeDevice, .id = ordinal};
  for (const auto& [data, size] : sizes_)
    cuda_check(cudaMemPrefetchAsync(data, size, gpu, 0, stream), "cudaMemPrefetchAsync");
}

}  // namespace dsv4::bench
