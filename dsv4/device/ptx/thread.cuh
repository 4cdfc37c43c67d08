// Special registers of a thread, read in a way that limits what the compiler keeps in registers,
// and values that it cannot see through.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// threadIdx.x, read again at every call: nothing derived from it stays in registers between calls.
__device__ inline int thread_index() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  __builtin_assume(thread >= 0 && thread < 1024);  // divisions are shifts
  return thread;
}

// threadIdx.x % 32 in a CTA of one dimension, without a relation to threadIdx.x that ptxas could
// use to keep derived values.
__device__ inline int lane_id() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  __builtin_assume(lane >= 0 && lane < 32);
  return lane;
}

// Returns x (32 bits), but the compiler cannot know: values derived from the result are not shared
// with, or replaced by, values derived from x.
template <class T>
__device__ inline T opaque(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

}  // namespace dsv4::ptx
