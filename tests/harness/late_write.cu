#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/peer_flag.cuh"
#include "tests/harness/kernels.h"

namespace dsv4::test {
namespace {

constexpr int kBlocks = 16, kThreads = 256;  // leaves room for the kernel that starts early
constexpr int64_t kLongestWait = 100'000'000, kStart = 30'000;  // nanoseconds

__device__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <class Word>
__device__ bool copy(const Write& write) {
  const auto to = reinterpret_cast<uintptr_t>(write.to);
  if (to % sizeof(Word) != 0 || write.bytes % static_cast<int64_t>(sizeof(Word)) != 0) return false;
  const int64_t first = blockIdx.x * kThreads + threadIdx.x;
  for (int64_t i = first; i < write.bytes / static_cast<int64_t>(sizeof(Word));
       i += kBlocks * kThreads) {
    reinterpret_cast<Word*>(write.to)[i] = reinterpret_cast<const Word*>(write.from)[i];
  }
  return true;
}

__global__ void late_write_kernel(const Write* writes, int count, const volatile int32_t* go) {
  let_next_start();
  if (threadIdx.x == 0) {
    const int64_t begin = ptx::global_nanoseconds();
    while (*go == 0 && ptx::global_nanoseconds() - begin < kLongestWait) {
    }
    const int64_t enqueued = ptx::global_nanoseconds();
    while (ptx::global_nanoseconds() - enqueued < kStart) {
    }
  }
  __syncthreads();
  for (int i = 0; i < count; ++i) {
    if (!copy<uint4>(writes[i]) && !copy<uint32_t>(writes[i])) copy<unsigned char>(writes[i]);
  }
}

}  // namespace

void write_late(Device& device, const Write* writes, int count, const int32_t* go) {
  launch(device, "late_write", late_write_kernel, {.grid = kBlocks, .block = kThreads}, writes,
         count, go);
}

}  // namespace dsv4::test
