// Stores of an epilogue: two neighboring f32 accumulators, converted to the output type.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/packed.cuh"

namespace dsv4::sm90 {

__device__ inline void store_pair(float* to, float low, float high) {
  *reinterpret_cast<float2*>(to) = {low, high};
}
__device__ inline void store_pair(bf16* to, float low, float high) {
  *reinterpret_cast<uint32_t*>(to) = ptx::pack_bf16x2(low, high);
}

}  // namespace dsv4::sm90
