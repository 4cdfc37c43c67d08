#include "dsv4/device/memory.h"

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/device/error.h"

namespace dsv4 {
namespace {

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

}  // namespace

std::byte* DeviceMemory::allocate(int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const cudaError_t status = cudaMalloc(&data, size);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is ours, and it is over
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    fail(ErrorCode::kResource,
         "out of GPU memory: {:.2f} GiB wanted, {:.2f} of {:.2f} GiB free (`dsv4 plan MODEL` says "
         "what fits)",
         gib(bytes), gib(static_cast<int64_t>(free)), gib(static_cast<int64_t>(total)));
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

}  // namespace dsv4
