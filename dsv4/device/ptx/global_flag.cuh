// Counters in global memory by which CTAs of a kernel that run at the same time publish what is
// done.
//
// A CTA that waits needs the others to run or to have run, so a kernel with such a counter has at
// most as many CTAs as the device runs together, and waits only for work that comes earlier in an
// order that all of them follow.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// Adds, as a release at GPU scope: what this thread wrote, or waited for at a barrier of its CTA,
// is visible to a thread that has seen the sum.
__device__ inline void add_release(int32_t* counter, int32_t value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Waits until the counter is at least `least`; an acquire at GPU scope.
__device__ inline void wait_at_least(const int32_t* counter, int32_t least) {
  int32_t value;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  } while (value < least);
}

}  // namespace dsv4::ptx
