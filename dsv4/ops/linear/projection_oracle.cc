#include "dsv4/ops/linear/projection_oracle.h"

#include "dsv4/ops/linear/linear_oracle.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/quant/quant_oracle.h"

namespace dsv4 {

std::vector<double> projection_oracle(const Context& context, const ConstTensorView& x,
                                      const WeightView& weight) {
  if (context.numerics != Numerics::kOfficial || !weight.quantized_activations())
    return linear_oracle({.x = x, .weight = weight});
  constexpr int kColumns = 128;
  const QuantizeQ8Want q8 = quantize_q8_oracle({.x = x, .group = kColumns});
  const int64_t t = x.dim(0), k = x.dim(1), groups = (k + kColumns - 1) / kColumns;
  const Buffer codes = oracle::stored(DType::kE4M3, {t, k}, q8.codes);
  const Buffer scales = oracle::stored(DType::kE8M0, {t, groups}, q8.scales);
  return linear_oracle({.x = codes, .x_scale = scales, .weight = weight});
}

}  // namespace dsv4
