#include "dsv4/ops/parts/linear/projection_oracle.h"

#include "dsv4/ops/parts/linear/linear_oracle.h"

namespace dsv4 {

std::vector<double> projection_oracle(const Context& context, const ConstTensorView& x,
                                      const WeightView& weight) {
  const bool quantize = context.numerics == Numerics::kOfficial && weight.quantized_activations();
  return linear_oracle({.x = x, .weight = weight, .quantize_x = quantize});
}

}  // namespace dsv4
