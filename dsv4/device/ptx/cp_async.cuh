// cp.async (sm_80): asynchronous copies of 4 to 16 bytes per thread from global to shared memory,
// by the generic proxy.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

// 16 bytes bypass L1 (.cg), 4 and 8 go through it (.ca).
template <int kBytes>
__device__ inline void cp_async(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem_address(to)), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(smem_address(to)), "l"(from),
                 "n"(kBytes)
                 : "memory");
  }
}
// 16 bytes, with an L2 prefetch of 128.
__device__ inline void cp_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
// 4 bytes; if !valid, zeros, and `from` is not read.
__device__ inline void cp_async_4_zfill(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
// 16 bytes, with an L2 prefetch of 128; if !valid, zeros, and `from` is not read.
__device__ inline void cp_async_zfill(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
// The cp.async of this thread since the last commit become a group.
__device__ inline void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits for all groups of this thread but the last kGroups.
template <int kGroups>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
// Waits for all cp.async of this thread; other threads see the bytes after a barrier.
__device__ inline void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace dsv4::ptx
