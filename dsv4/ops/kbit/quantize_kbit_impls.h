// The implementations of quantize_kbit.h.

#pragma once

#include "dsv4/ops/kbit/quantize_kbit.h"

namespace dsv4 {

void quantize_kbit_cpu(const Context& context, const QuantizeKbitArgs& args);

}  // namespace dsv4
