#include "dsv4/device/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/base/host_memory_limits.h"
#include "dsv4/base/size_text.h"
#include "dsv4/device/error.h"

namespace dsv4 {

std::byte* DeviceMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const cudaError_t status = cudaMalloc(&data, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is ours, and it is over
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    fail(ErrorCode::kResource,
         "out of GPU memory: {} wanted, {} of {} free (`dsv4 plan MODEL` says "
         "what fits)",
         size_text(bytes, 2), size_text(static_cast<int64_t>(free), 2),
         size_text(static_cast<int64_t>(total), 2));
  }
  cuda_check(status, "cudaMalloc");
  cuda_check(cudaMemsetAsync(data, 0, size, stream_), "cudaMemset");
  return static_cast<std::byte*>(data);
}

void DeviceMemory::release(std::byte* data) noexcept {
  cudaFree(data);  // waits for the kernels that use it
}

void DeviceMemory::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
             "copy to the GPU");
  cuda_check(cudaStreamSynchronize(stream_), "copy to the GPU");
}

void DeviceMemory::download(std::byte* to, const std::byte* from, int64_t bytes) {
  if (bytes == 0) return;
  cuda_check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
             "copy from the GPU");
  cuda_check(cudaStreamSynchronize(stream_), "copy from the GPU");
}

std::byte* PinnedMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  cuda_check(cudaMallocHost(&data, size), "page-locked host memory");
  std::memset(data, 0, size);
  return static_cast<std::byte*>(data);
}

void PinnedMemory::release(std::byte* data) noexcept {
  cudaFreeHost(data);
}

void PinnedMemory::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void PinnedMemory::download(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

namespace {

// Pages of zeros; large ones where the system has them, since each is locked by itself.
std::byte* map_pages(size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    fail(ErrorCode::kResource, "cannot map {} of host memory: {}",
         size_text(static_cast<int64_t>(bytes), 2), std::strerror(errno));
  madvise(data, bytes, MADV_HUGEPAGE);  // a wish: small pages serve, too
  return static_cast<std::byte*>(data);
}

}  // namespace

std::byte* MappedMemory::allocate(int64_t bytes) {
  cuda_check(cudaSetDevice(ordinal_), "cudaSetDevice");
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  std::byte* const data = map_pages(size);
  const cudaError_t status =
      cudaHostRegister(data, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
  void* there = nullptr;
  if (status == cudaSuccess && cudaHostGetDevicePointer(&there, data, 0) == cudaSuccess &&
      there == data) {
    const std::lock_guard lock(mutex_);
    sizes_[data] = bytes;
    locked_ += bytes;
    return data;
  }
  cudaGetLastError();  // this error is ours, and it is over
  if (status == cudaSuccess) cudaHostUnregister(data);
  munmap(data, size);
  if (status == cudaSuccess)
    fail(ErrorCode::kUnsupported,
         "{} of host memory have another address for the GPU than for the CPU: experts in "
         "host memory need one for both",
         size_text(bytes, 2));
  const std::lock_guard lock(mutex_);
  fail(ErrorCode::kResource, "{}",
       host_memory_limits().lock_refused(bytes, locked_, cudaGetErrorString(status)));
}

void MappedMemory::release(std::byte* data) noexcept {
  if (data == nullptr) return;
  cudaHostUnregister(data);
  const std::lock_guard lock(mutex_);
  const auto at = sizes_.find(data);
  munmap(data, static_cast<size_t>(std::max<int64_t>(at->second, 1)));
  locked_ -= at->second;
  sizes_.erase(at);
}

}  // namespace dsv4
