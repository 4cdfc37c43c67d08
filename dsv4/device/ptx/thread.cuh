// PTX of single threads that CUDA has no function for, and what keeps the compiler from knowing a
// number.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// threadIdx.x, asked for anew at every call: nothing made of it is kept in registers between calls.
__device__ inline int this_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  __builtin_assume(thread >= 0 && thread < 1024);  // divisions are shifts
  return thread;
}

// threadIdx.x % 32 in a block of one dimension. ptxas does not know that, and keeps nothing that it
// has made of threadIdx.x for it.
__device__ inline int lane_of_warp() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  __builtin_assume(lane >= 0 && lane < 32);
  return lane;
}

// The same 32-bit number, but the compiler does not know: what is made of the result is made of
// nothing else, and what was made of x before is not kept for it.
template <class T>
__device__ inline T opaque(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

// A kernel that was launched early (LaunchShape::early) waits here until the one before it in the
// stream is done and what it wrote can be read; any other passes. Before that nothing may be read
// or written that another kernel writes or reads.
__device__ inline void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// From here on, in all blocks, the next kernel may start where there is room, if it is an early
// one.
__device__ inline void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// The block's dynamic shared memory; on 1024 bytes.
__device__ inline unsigned char* block_memory() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

// 2^x, off by 2 units in the last place of f32; subnormal numbers are 0.
__device__ inline float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four e4m3 codes -> two pairs of f16, each times a pair of f16 scales; low: of the low half of
// `codes`.
__device__ inline void scaled_pairs(uint32_t codes, uint32_t low_scale, uint32_t high_scale,
                                    uint32_t& low, uint32_t& high) {
  asm("{\n"
      ".reg .b16 l, h;\n"
      ".reg .b32 a, b;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 a, l;\n"
      "cvt.rn.f16x2.e4m3x2 b, h;\n"
      "mul.rn.f16x2 %0, a, %3;\n"
      "mul.rn.f16x2 %1, b, %4;\n"
      "}"
      : "=r"(low), "=r"(high)
      : "r"(codes), "r"(low_scale), "r"(high_scale));
}

}  // namespace dsv4::ptx
