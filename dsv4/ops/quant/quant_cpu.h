// CPU rows of quant.h.

#pragma once

#include "dsv4/ops/quant/quant.h"

namespace dsv4 {

void quantize_q8_cpu(const Context& context, const QuantizeQ8Args& args);
void fake_quant_cpu(const Context& context, const FakeQuantArgs& args);
void hadamard_cpu(const Context& context, const HadamardArgs& args);

}  // namespace dsv4
