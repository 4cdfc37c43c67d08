// The operands of the tensor core kernels, bf16 or f16: pairs in a register, and their product.

#pragma once

#include <type_traits>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/mma_f16.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/ops/gemm/cuda/problem.h"

namespace dsv4::gemm::cuda {

// Rounded to nearest even.
template <class X>
__device__ inline uint32_t operand_pair(float low, float high) {
  if constexpr (std::is_same_v<X, f16>) {
    return ptx::pack_f16x2(low, high);
  } else {
    return ptx::pack_bf16x2(low, high);
  }
}

template <class X>
__device__ inline uint4 operand_quad(const float (&v)[8]) {
  uint4 quad;
  quad.x = operand_pair<X>(v[0], v[1]);
  quad.y = operand_pair<X>(v[2], v[3]);
  quad.z = operand_pair<X>(v[4], v[5]);
  quad.w = operand_pair<X>(v[6], v[7]);
  return quad;
}

template <class X>
__device__ inline void multiply_operands(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (std::is_same_v<X, f16>) {
    ptx::mma_m16n8k16_f16(c, a, b0, b1);
  } else {
    ptx::mma_m16n8k16_bf16(c, a, b0, b1);
  }
}

template <class X>
struct OperandType {};

// Calls run(OperandType<X>) with the type that the problem takes, if the decoder has it.
template <class Decode, class Run>
void with_operand(const Problem& p, const Run& run) {
  if constexpr (Decode::kIsF16)
    if (p.x_dtype == DType::kF16) return run(OperandType<f16>());
  if constexpr (Decode::kIsBf16) run(OperandType<bf16>());
}

}  // namespace dsv4::gemm::cuda
