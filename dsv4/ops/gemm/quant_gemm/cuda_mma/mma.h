// The tensor core kernels by weight format, in several files because they take long to compile.
// "Plain" formats are BF16, FP8, MXFP4 and NVFP4.

#pragma once

#include "dsv4/ops/gemm/quant_gemm/quant_gemm_cuda.h"

namespace dsv4::quant_gemm {

// Tiles of 32 rows or more; x is bf16.
void mma_plain(Device& device, const Problem& problem);
void mma_kbit(Device& device, const Problem& problem);

// Tiles of 8 or 16 rows; x is bf16 or E4M3.
void small_m_plain(Device& device, const Problem& problem);
void small_m_kbit(Device& device, const Problem& problem);

}  // namespace dsv4::quant_gemm
