// What kernels share: element access by dtype, warp and block reductions.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "dsv4/formats/float16.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

inline constexpr int kWarp = 32;

// Element types as kernels are instantiated with them: float, bf16, and f16 for stored weights.
using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float to_float(f16 x) {
  return __half2float(x);
}
// The one rounding of a store (round to nearest even).
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  return __float2half_rn(x);
}

// Calls body with a value of the element type that `dtype` names (F32 or BF16): the host side of
// kernels that are templates over it.
template <class Body>
void with_float_type(DType dtype, const Body& body) {
  if (dtype == DType::kF32) {
    body(float{});
  } else {
    body(bf16{});
  }
}

// As above, for tensors that may also be F16.
template <class Body>
void with_stored_type(DType dtype, const Body& body) {
  if (dtype == DType::kF16) {
    body(f16{});
  } else {
    with_float_type(dtype, body);
  }
}

// Butterfly sums: every lane ends with the same bits, and the order depends on nothing.
__device__ inline float warp_sum(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Sum over the block, the same bits in every thread; blockDim.x is a multiple of 32 and at most
// 1024. `shared` holds 32 floats not used otherwise until the next barrier after the call.
__device__ inline float block_sum(float x, float* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  x = warp_sum(x);
  __syncthreads();  // the previous use of `shared` is over
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  return warp_sum(lane < warps ? shared[lane] : 0.f);
}

// A store to all places of a value. A kernel does not wait until other GPUs have it; a later kernel
// of the stream finds that it arrived.
template <class T>
__device__ inline void store_mirrored(T* to, const T& value, const Mirrors& mirrors) {
  *to = value;
  for (int i = 0; i < mirrors.count; ++i)
    *reinterpret_cast<T*>(reinterpret_cast<std::byte*>(to) + mirrors.distance[i]) = value;
}

}  // namespace dsv4
