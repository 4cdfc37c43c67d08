#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/comm/process_memory.h"
#include "dsv4/device/error.h"

namespace dsv4 {
namespace {

// A handle gives access to all of the pages that hold the memory, so nothing else is on them.
constexpr int64_t kPageBytes = int64_t{2} << 20;

void check(cudaError_t status, const char* call, const std::string& what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it is not the error of a later call
  fail(ErrorCode::kUnsupported,
       "{} ({}: {}): ranks that are processes need CUDA IPC (one container, or --ipc=host "
       "--pid=host; not WSL); else give --exchange nccl, or --gpus N, whose ranks are threads",
       what, call, cudaGetErrorString(status));
}

}  // namespace

OfferedMemory::OfferedMemory(int64_t bytes) {
  const auto size = static_cast<size_t>(align_up(bytes, kPageBytes));
  void* data = nullptr;
  cuda_check(cudaMalloc(&data, size), "cudaMalloc");
  data_ = static_cast<unsigned char*>(data);
  try {
    cuda_check(cudaMemset(data, 0, size), "cudaMemset");
    cuda_check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  } catch (...) {
    cudaFree(data);
    throw;
  }
}

cudaIpcMemHandle_t OfferedMemory::handle() const {
  cudaIpcMemHandle_t handle{};
  check(cudaIpcGetMemHandle(&handle, data_), "cudaIpcGetMemHandle",
        "this GPU's memory cannot be offered to another process");
  return handle;
}

OpenedMemory::OpenedMemory(const cudaIpcMemHandle_t& handle, int rank) {
  check(cudaIpcOpenMemHandle(&data_, handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle", fmt::format("memory of rank {}'s GPU cannot be reached", rank));
}

}  // namespace dsv4
