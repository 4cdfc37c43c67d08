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

std::vector<unsigned char*> open_offered(const OfferedMemory& own, int rank, const Swap& swap,
                                         std::vector<std::unique_ptr<OpenedMemory>>& opened) {
  const std::vector<Bytes> handles = swap(MessageWriter().put(own.handle()).bytes());
  std::vector<unsigned char*> of_rank;
  for (int r = 0; r < static_cast<int>(handles.size()); ++r) {
    if (r == rank) {
      of_rank.push_back(own.data());
      continue;
    }
    const auto handle = MessageReader(handles[static_cast<size_t>(r)]).get<cudaIpcMemHandle_t>();
    opened.push_back(std::make_unique<OpenedMemory>(handle, r));
    of_rank.push_back(opened.back()->data());
  }
  return of_rank;
}

}  // namespace dsv4
