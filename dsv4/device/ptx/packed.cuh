// Pairs of 16-bit floats in one 32-bit register, low half first. No instruction: host code too.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace dsv4::ptx {

__device__ inline __nv_bfloat162 as_bf162(uint32_t bits) {
  return reinterpret_cast<const __nv_bfloat162&>(bits);
}
__device__ inline __half2 as_half2(uint32_t bits) {
  return reinterpret_cast<const __half2&>(bits);
}
__device__ inline uint32_t as_bits(__nv_bfloat162 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline uint32_t as_bits(__half2 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}

// Rounds to nearest even.
__device__ inline uint32_t pack_bf16x2(float low, float high) {
  return as_bits(__floats2bfloat162_rn(low, high));
}
__device__ inline uint32_t pack_f16x2(float low, float high) {
  return as_bits(__floats2half2_rn(low, high));
}

}  // namespace dsv4::ptx
