// multiply() of kernel.h by weight format. Each format is compiled in a file of its own, because
// its unrolled kernels take long on every instruction set.

#pragma once

#include "dsv4/ops/gemm/quant_gemm/cpu/kernel.h"

namespace dsv4::quant_gemm {

void multiply_f32(const Block& block);
void multiply_bf16(const Block& block);
void multiply_f16(const Block& block);
void multiply_fp8(const Block& block);
void multiply_mxfp4(const Block& block);
void multiply_nvfp4(const Block& block);
void multiply_k2(const Block& block);
void multiply_k3(const Block& block);
void multiply_k4(const Block& block);
void multiply_k5(const Block& block);

}  // namespace dsv4::quant_gemm
