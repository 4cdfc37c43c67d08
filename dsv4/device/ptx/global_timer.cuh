// The clock of a GPU in nanoseconds. All multiprocessors read the same one, and it may advance by a
// microsecond at a time.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

__device__ inline int64_t global_nanoseconds() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

}  // namespace dsv4::ptx
