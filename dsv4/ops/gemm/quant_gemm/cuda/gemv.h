// The GEMV kernels by weight format. Each format is compiled in a file of its own, because its six
// instances (x as float or bf16, tiles of 1 to 8 rows) take long.

#pragma once

#include "dsv4/ops/gemm/quant_gemm/quant_gemm_cuda.h"

namespace dsv4::quant_gemm {

void gemv_f32(Device& device, const Problem& problem);
void gemv_bf16(Device& device, const Problem& problem);
void gemv_f16(Device& device, const Problem& problem);
void gemv_fp8(Device& device, const Problem& problem);
void gemv_mxfp4(Device& device, const Problem& problem);
void gemv_nvfp4(Device& device, const Problem& problem);
void gemv_k2(Device& device, const Problem& problem);
void gemv_k3(Device& device, const Problem& problem);
void gemv_k4(Device& device, const Problem& problem);
void gemv_k5(Device& device, const Problem& problem);

// Any format, shape and alignment; slow.
void gemv_any(Device& device, const Problem& problem);

}  // namespace dsv4::quant_gemm
