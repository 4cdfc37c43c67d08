// The quantized-GEMM core of the ops linear and experts: activations times weights in any stored
// format (formats/weight.h), accumulated in f32.
//
//   out[m, n] = sum_k x[row(m), k] * w[n, k]
//
//   M   rows of out: tokens in linear, token-expert pairs in experts
//   N   rows of the stored weight matrix
//   K   columns of x and of the weight matrix
//
// This folder is a core room: it has no op table, no oracle and no tests of its own. The ops check
// the arguments and choose among the implementations, and the tests of their tables cover it.
//
//   quant_gemm_cpu.h    a list of GEMMs in one parallel region; kernels in cpu/
//   quant_gemm_cuda.h   one problem for the CUDA kernels: GEMV kernels in cuda/ (f32 arithmetic,
//                       batch invariant) and tensor core kernels in cuda_mma/ (bf16 operands)

#pragma once

#include <cstdint>

namespace dsv4 {

// Columns of x that share one UE8M0 scale when x is E4M3.
inline constexpr int64_t kActivationGroup = 128;

}  // namespace dsv4
