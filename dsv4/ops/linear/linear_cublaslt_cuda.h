// Rows of linear.h that hand the product to cuBLASLt.

#pragma once

#include "dsv4/ops/linear/linear.h"

namespace dsv4 {

// Tensor cores align the addends of a step to the largest and cut off what falls below its last
// kept bit. With bf16 operands, whose products are exact, an f32 sum of sums loses some 2^-23 of
// the running sum a step, always in the same direction; 2^-20 of the magnitudes covers k = 16384.
// With FP8 operands Hopper keeps 13 bits behind the point within the 128 columns of a scale.
inline constexpr double kLtBf16Rounding = 0x1p-20, kLtFp8Rounding = 0x1p-12;

// bf16 x times BF16 weights, 16 tokens or more.
const char* linear_cublaslt_reject(const Context& context, const LinearArgs& args);
void linear_cublaslt_cuda(const Context& context, const LinearArgs& args);

// E4M3 x with its scales times FP8 blocks, on Hopper.
const char* linear_cublaslt_fp8_reject(const Context& context, const LinearArgs& args);
void linear_cublaslt_fp8_cuda(const Context& context, const LinearArgs& args);

}  // namespace dsv4
