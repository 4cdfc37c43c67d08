// The room of weight products: activations times weights in any stored format (formats/weight.h),
// accumulated in f32.
//
//   out[m, n] = sum_k x[row(m), k] * w[n, k]
//
//   M   rows of out: tokens in linear, token-expert pairs in experts
//   N   rows of the stored weight matrix
//   K   columns of x and of the weight matrix
//
// It has no op table, no oracle and no tests of its own: the ops check the arguments and choose
// among the implementations, and the tests of their tables cover it. This half runs on every CPU
// and every CUDA device of sm_80 on:
//
//   cpu/jobs.h       a list of products in one parallel region
//   cuda/problem.h   one problem for the CUDA kernels: GEMV (f32 arithmetic, batch invariant) and
//                    tensor cores (bf16 operands), for tiles of at most 16 rows (small M) and more
//   weights/         one decoder a stored format for the CUDA kernels, and one for the CPU
//
// A new stored format touches seven files of this half: its decoder in weights/decode.cuh, a line
// in cuda/instance.cu (compiled once a format), with_decoder() in cuda/kernels.h and a case in
// cuda/gemv_any.cu; its decoder in weights/cpu_*-inl.h, a line in cpu/multiply_instance.cc and
// WithDecoder() in cpu/kernel.cc. What it touches elsewhere: docs/kernels/gemm.md.

#pragma once

#include <cstdint>

namespace dsv4 {

// Columns of x that share one UE8M0 scale when x is E4M3.
inline constexpr int64_t kActivationGroup = 128;

}  // namespace dsv4
