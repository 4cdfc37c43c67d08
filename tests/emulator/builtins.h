// What nvcc declares before the first line of a .cu file, for g++, which includes this file on its
// command line. Vector types and most of f16 and bf16 come from CUDA's headers.

#pragma once

#define CUDA_NO_HALF  // the name `half`, which nvcc lets kernels use
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tests/emulator/instructions.h"

#define __CUDA_ARCH_FEAT_SM90_ALL 1
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#define __noinline__

// One variable for the program, of which every CTA has a copy (shared_memory.cc). Write alignas
// before __shared__; dynamic shared memory is ptx::block_memory(), not an extern array.
#undef __shared__
#define __shared__ static __attribute__((noinit))

// Coordinates of the running thread.
inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim, gridDim;

inline int min(int a, int b) {
  return std::min(a, b);
}
inline int max(int a, int b) {
  return std::max(a, b);
}

inline unsigned min(unsigned a, unsigned b) {
  return std::min(a, b);
}
inline unsigned max(unsigned a, unsigned b) {
  return std::max(a, b);
}
inline uint64_t min(uint64_t a, uint64_t b) {
  return std::min(a, b);
}
inline uint64_t max(uint64_t a, uint64_t b) {
  return std::max(a, b);
}

inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fsub_rn(float a, float b) {
  return a - b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dsub_rn(double a, double b) {
  return a - b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
// Saturates; 0 for NaN.
inline int __float2int_rz(float x) {
  if (!(x == x)) return 0;
  return x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : static_cast<int>(x);
}

inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline float __int_as_float(int bits) {
  return std::bit_cast<float>(bits);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
  return std::bit_cast<unsigned>(x);
}
inline int __clz(int bits) {
  return std::countl_zero(static_cast<unsigned>(bits));
}
// One more than the place of the lowest bit; 0 for none.
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned picked = 0;
  for (int i = 0; i < 4; ++i)
    picked |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return picked;
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
inline int atomicAdd(int* at, int value) {
  dsv4::emulator::pause();
  const int before = *at;
  *at = before + value;
  return before;
}
inline int atomicMin(int* at, int value) {
  dsv4::emulator::pause();
  const int before = *at;
  *at = std::min(before, value);
  return before;
}
inline int atomicMax(int* at, int value) {
  dsv4::emulator::pause();
  const int before = *at;
  *at = std::max(before, value);
  return before;
}

template <class T>
T atomicAdd(T* at, T value) {
  dsv4::emulator::pause();
  const T before = *at;
  *at = before + value;
  return before;
}

inline float __fdividef(float x, float y) {
  return x / y;
}

// A shuffle of 4 or 8 bytes from the lane with this number in the warp.
template <class T>
T emulated_shuffle(const char* name, unsigned mask, T value, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(
        dsv4::emulator::shuffle(name, mask, std::bit_cast<uint32_t>(value), from));
  } else {
    const auto bits = std::bit_cast<uint64_t>(value);
    const uint32_t low = dsv4::emulator::shuffle(name, mask, static_cast<uint32_t>(bits), from);
    const uint32_t high =
        dsv4::emulator::shuffle(name, mask, static_cast<uint32_t>(bits >> 32), from);
    return std::bit_cast<T>(static_cast<uint64_t>(high) << 32 | low);
  }
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emulated_shuffle("__shfl_xor_sync", mask, value,
                          static_cast<int>(threadIdx.x % 32) ^ bits);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from) {
  return emulated_shuffle("__shfl_sync", mask, value, from % 32);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int distance) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return emulated_shuffle("__shfl_up_sync", mask, value, lane < distance ? lane : lane - distance);
}
inline unsigned __ballot_sync(unsigned mask, bool yes) {
  return dsv4::emulator::ballot("__ballot_sync", mask, yes);
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value) {
  for (int step = 16; step > 0; step /= 2) value |= __shfl_xor_sync(mask, value, step);
  return value;
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  for (int step = 16; step > 0; step /= 2)
    value = std::max(value, __shfl_xor_sync(mask, value, step));
  return value;
}
template <class T>
T __reduce_min_sync(unsigned mask, T value) {
  for (int step = 16; step > 0; step /= 2)
    value = std::min(value, __shfl_xor_sync(mask, value, step));
  return value;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(mask, value, step);
  return value;
}
inline unsigned __match_any_sync(unsigned mask, int value) {
  unsigned same = 0;
  for (int lane = 0; lane < 32; ++lane)
    same |= static_cast<unsigned>(__shfl_sync(mask, value, lane) == value) << lane;
  return same;
}
inline bool __all_sync(unsigned mask, bool yes) {
  return dsv4::emulator::ballot("__all_sync", mask, yes) == mask;
}
inline bool __any_sync(unsigned mask, bool yes) {
  return dsv4::emulator::ballot("__any_sync", mask, yes) != 0;
}
inline void __syncwarp() {
  dsv4::emulator::sync_warp();
}
inline void __syncthreads() {
  dsv4::emulator::barrier_of_all(false);
}
inline int __syncthreads_or(int yes) {
  return dsv4::emulator::barrier_of_all(yes != 0);
}
[[noreturn]] inline void __trap() {
  dsv4::emulator::trap();
}
