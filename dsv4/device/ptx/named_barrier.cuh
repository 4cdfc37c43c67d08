// Named barriers 1 .. 15 (0 is __syncthreads): barriers of some warps of a CTA.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// threads: of all warps that take part, a multiple of 32.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Counts the threads as arrived, without waiting.
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// barrier_sync(), and returns whether `predicate` is true in any of the threads.
__device__ inline bool barrier_red_or(int id, int threads, bool predicate) {
  uint32_t any = 0;
  asm volatile(
      "{\n"
      ".reg .pred in, out;\n"
      "setp.ne.u32 in, %3, 0;\n"
      "barrier.cta.red.or.pred out, %1, %2, in;\n"
      "selp.u32 %0, 1, 0, out;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(predicate))
      : "memory");
  return any != 0;
}

}  // namespace dsv4::ptx
