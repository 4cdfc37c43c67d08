// Counters and flags in global memory by which CTAs that run at the same time tell each other what
// is done: counters of one kernel, and flags of kernels on several devices.
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

// The clock that all SMs of a GPU share, whose frequency does not change. It advances every 32 ns
// or every microsecond, as the driver has set it. Clocks of two GPUs differ.
__device__ inline int64_t global_nanoseconds() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Flags in memory that kernels of several devices reach, each written by one of them. What a thread
// wrote, or waited for at a barrier of its CTA, before it raised a flag is visible to a thread that
// has waited for the flag. A release at system scope.
__device__ inline void raise_flag(int64_t* flag, int64_t value) {
  asm volatile("st.release.sys.global.s64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Waits until the flag is at least `least`; an acquire at system scope. Gives up and returns false
// when *stop is not 0, or after that many nanoseconds. *stop may be in host memory, where a read
// takes an H200 20 us in which the flag is not seen, so it is read every few milliseconds only.
__device__ inline bool wait_for_flag(const int64_t* flag, int64_t least, const int64_t* stop,
                                     int64_t nanoseconds) {
  constexpr int kPollsBetweenChecks = 8192;
  int64_t value, end = 0;
  for (int polls = 1;; ++polls) {
    asm volatile("ld.acquire.sys.global.s64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    if (value >= least) return true;
    if (polls % kPollsBetweenChecks != 0) continue;
    if (end == 0) end = global_nanoseconds() + nanoseconds;
    int64_t stopped;
    asm volatile("ld.relaxed.sys.global.s64 %0, [%1];" : "=l"(stopped) : "l"(stop) : "memory");
    if (stopped != 0 || global_nanoseconds() > end) return false;
  }
}

}  // namespace dsv4::ptx
