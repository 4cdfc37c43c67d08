// The implementations of quant.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4 {

void quantize_q8_cpu(const Context& context, const QuantizeQ8Args& args);
void fake_quant_cpu(const Context& context, const FakeQuantArgs& args);
void hadamard_cpu(const Context& context, const HadamardArgs& args);

void quantize_q8_cuda(const Context& context, const QuantizeQ8Args& args);
void fake_quant_cuda(const Context& context, const FakeQuantArgs& args);
const char* hadamard_cuda_reject(const Context& context, const HadamardArgs& args);
void hadamard_cuda(const Context& context, const HadamardArgs& args);

}  // namespace dsv4
