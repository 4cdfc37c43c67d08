// The implementations of linear.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/linear/linear.h"

namespace dsv4 {

// All but sm90_few, sm90_few_kbit and parts take x as it is.
inline const char* linear_reject_quantize(const Context&, const LinearArgs& args) {
  return args.quantize_x ? "x has to be quantized first" : nullptr;
}

// quantize_x: quantize_q8, then the call without it.
const char* linear_parts_reject(const Context& context, const LinearArgs& args);
void linear_parts(const Context& context, const LinearArgs& args);

// Up to 32 tokens under kOfficial, FP8 and BF16 weights, on Hopper (few_gemm); Q8 of x in the same
// kernel for up to 4 tokens. FP8 products are added as by cublaslt_fp8.
const char* linear_sm90_few_reject(const Context& context, const LinearArgs& args);
void linear_sm90_few(const Context& context, const LinearArgs& args);

// k4-e4m3 and k5-e4m3 weights, read as bit planes by the same kernel, for up to 8 tokens.
const char* linear_sm90_few_kbit_reject(const Context& context, const LinearArgs& args);
void linear_sm90_few_kbit(const Context& context, const LinearArgs& args);

void linear_cpu(const Context& context, const LinearArgs& args);
HostBytes linear_cpu_bytes(const LinearArgs& args);

// f32 arithmetic for any format, shape and alignment.
void linear_cuda(const Context& context, const LinearArgs& args);

// Tensor cores under kOfficial, for more than a few tokens. cuda_mma takes weights whose values are
// bf16 numbers; cuda_mma_rounded rounds any others to bf16.
const char* linear_cuda_mma_reject(const Context& context, const LinearArgs& args);
const char* linear_cuda_mma_rounded_reject(const Context& context, const LinearArgs& args);
void linear_cuda_mma(const Context& context, const LinearArgs& args);

// bf16 x times BF16 weights, 16 tokens or more.
const char* linear_cublaslt_reject(const Context& context, const LinearArgs& args);
void linear_cublaslt(const Context& context, const LinearArgs& args);

// bf16 x times FP8 blocks, which are written to the workspace as bf16 first (exact, because their
// scales are powers of two); 256 tokens or more.
const char* linear_cublaslt_dequantized_reject(const Context& context, const LinearArgs& args);
void linear_cublaslt_dequantized(const Context& context, const LinearArgs& args);

// E4M3 x with its scales times FP8 blocks, on Hopper.
const char* linear_cublaslt_fp8_reject(const Context& context, const LinearArgs& args);
void linear_cublaslt_fp8(const Context& context, const LinearArgs& args);

// Tensor cores align the addends of a step to the largest one and truncate below its last kept bit.
// With bf16 operands, whose products are exact, each step loses about 2^-23 of the running f32 sum,
// always in the same direction; 2^-20 of the magnitudes covers k = 16384. With FP8 operands Hopper
// keeps 13 fractional bits within the 128 columns of a scale.
inline constexpr double kLtBf16Rounding = 0x1p-20, kLtFp8Rounding = 0x1p-12;

}  // namespace dsv4
